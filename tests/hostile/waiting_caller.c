/* A module of somebody else. CALL runs the command behind it, which may wait: the caller goes on meanwhile. */
#include <stddef.h>

typedef struct Ctx Ctx;
typedef struct Reply Reply;
typedef struct String String;

static Reply *(*call)(Ctx *, const char *, const char *, ...);
static const char *(*text_of)(const String *, size_t *);
static int (*reply_with)(Ctx *, const char *);
static void (*free_reply)(Reply *);
static int (*find)(const char *, void *);

static int run(Ctx *ctx, String **argv, int argc) {
    /* K, which servers before Redis 7.2 do not know: it may block. */
    Reply *reply = call(ctx, text_of(argv[1], NULL), "Kv", argv + 2, (size_t)(argc - 2));
    if (!reply) return reply_with(ctx, "UNKNOWN");
    free_reply(reply);
    return reply_with(ctx, "OK");
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    int (*create)(Ctx *, const char *, int (*)(Ctx *, String **, int), const char *, int, int, int);
    void (*attributes)(Ctx *, const char *, int, int);
    (void)argv, (void)argc;
    /* Where every module finds the API. */
    find = *(int (**)(const char *, void *))ctx;
    find("RedisModule_SetModuleAttribs", &attributes);
    find("RedisModule_CreateCommand", &create);
    find("RedisModule_Call", &call);
    find("RedisModule_StringPtrLen", &text_of);
    find("RedisModule_ReplyWithSimpleString", &reply_with);
    find("RedisModule_FreeCallReply", &free_reply);
    attributes(ctx, "waiting_caller", 1, 1);
    return create(ctx, "call", run, "write", 2, 2, 1);
}
