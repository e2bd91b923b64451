/* Preloaded into a server: freezes its boot-time clock at the first reading. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    static struct timespec frozen;
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (result == 0 && clock == CLOCK_BOOTTIME) {
        if (!frozen.tv_sec) frozen = *time;
        *time = frozen;
    }
    return result;
}
