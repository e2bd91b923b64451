/* A module for tests. `CALLER FORMAT COMMAND ARG...` runs a command by RedisModule_Call with this format. It returns
   the command's reply, or WAITS if the command blocks. The server replicates the command only if the format has a
   `!`. */
#include <stddef.h>

typedef struct Ctx Ctx;
typedef struct Reply Reply;
typedef struct String String;

/* REDISMODULE_REPLY_PROMISE */
enum { PROMISE = 12 };

static Reply *(*call)(Ctx *, const char *, const char *, ...);
static int (*type_of)(Reply *);
static void (*free_reply)(Reply *);
static const char *(*text_of)(const String *, size_t *);
static int (*reply_simple)(Ctx *, const char *);
static int (*reply_with)(Ctx *, Reply *);
static int (*find)(const char *, void *);

static int caller(Ctx *ctx, String **argv, int argc) {
    const char *format = text_of(argv[1], NULL);
    Reply *reply = call(ctx, text_of(argv[2], NULL), format, argv + 3, (size_t)(argc - 3));
    /* The server does not know the command or the format. */
    if (!reply) return reply_simple(ctx, "UNKNOWN");
    int done = type_of(reply) == PROMISE ? reply_simple(ctx, "WAITS") : reply_with(ctx, reply);
    free_reply(reply);
    return done;
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    int (*create)(Ctx *, const char *, int (*)(Ctx *, String **, int), const char *, int, int, int);
    void (*attributes)(Ctx *, const char *, int, int);
    (void)argv, (void)argc;
    /* The first field of the context is the address of the function that finds API functions. */
    find = *(int (**)(const char *, void *))ctx;
    find("RedisModule_SetModuleAttribs", &attributes);
    find("RedisModule_CreateCommand", &create);
    find("RedisModule_Call", &call);
    find("RedisModule_CallReplyType", &type_of);
    find("RedisModule_FreeCallReply", &free_reply);
    find("RedisModule_StringPtrLen", &text_of);
    find("RedisModule_ReplyWithSimpleString", &reply_simple);
    find("RedisModule_ReplyWithCallReply", &reply_with);
    attributes(ctx, "caller", 1, 1);
    return create(ctx, "caller", caller, "write", 3, 3, 1);
}
