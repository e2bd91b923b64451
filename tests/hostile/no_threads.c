/* Preloaded into a server: pthread_create fails while a file exists at the path in the variable NO_THREADS. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *data) {
    static int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
    if (!real) *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
    const char *file = getenv("NO_THREADS");
    return file && access(file, F_OK) == 0 ? EAGAIN : real(thread, attr, run, data);
}
