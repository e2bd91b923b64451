/* A module that a test loads beside dlock. HEARD returns how many module events it has received. */
#include <stddef.h>

typedef struct Ctx Ctx;
typedef struct String String;

/* REDISMODULE_NOTIFY_MODULE */
enum { MODULE = 1 << 13 };

static int (*reply_number)(Ctx *, long long);
static int (*find)(const char *, void *);
static long long count;

static int hear(Ctx *ctx, int kind, const char *event, String *key) {
    (void)ctx, (void)kind, (void)event, (void)key;
    count++;
    return 0;
}

static int heard(Ctx *ctx, String **argv, int argc) {
    (void)argv, (void)argc;
    return reply_number(ctx, count);
}

int RedisModule_OnLoad(Ctx *ctx, String **argv, int argc) {
    int (*create)(Ctx *, const char *, int (*)(Ctx *, String **, int), const char *, int, int, int);
    int (*subscribe)(Ctx *, int, int (*)(Ctx *, int, const char *, String *));
    void (*attributes)(Ctx *, const char *, int, int);
    (void)argv, (void)argc;
    /* The first field of the context is the address of the function that finds API functions. */
    find = *(int (**)(const char *, void *))ctx;
    find("RedisModule_SetModuleAttribs", &attributes);
    find("RedisModule_CreateCommand", &create);
    find("RedisModule_SubscribeToKeyspaceEvents", &subscribe);
    find("RedisModule_ReplyWithLongLong", &reply_number);
    attributes(ctx, "listener", 1, 1);
    return subscribe(ctx, MODULE, hear) || create(ctx, "heard", heard, "", 0, 0, 0);
}
