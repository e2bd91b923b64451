/* A module of somebody else. CALLER runs the command behind it, and wants nothing of it replicated. */
#include <stddef.h>

typedef struct Ctx Ctx;
typedef struct Reply Reply;
typedef struct String String;

static Reply *(*call)(Ctx *, const char *, const char *, ...);
static const char *(*text_of)(const String *, size_t *);
static int (*reply_with)(Ctx *, Reply *);
static int (*find)(const char *, void *);

static int caller(Ctx *ctx, String **argv, int argc) {
    return reply_with(ctx, call(ctx, text_of(argv[1], NULL), "v", argv + 2, (size_t)(argc - 2)));
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
    find("RedisModule_ReplyWithCallReply", &reply_with);
    attributes(ctx, "caller", 1, 1);
    return create(ctx, "caller", caller, "write", 2, 2, 1);
}
