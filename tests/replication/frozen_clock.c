/* Preloaded into a server: freezes its boot-time clock at the first reading, in the middle of a millisecond. In the
   first microsecond of one (one start in a thousand), no grant is logged verbatim, as its deadline is rounded up to
   another millisecond. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    static struct timespec frozen;
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (result == 0 && clock == CLOCK_BOOTTIME) {
        if (!frozen.tv_sec) {
            frozen = *time;
            frozen.tv_nsec += 500000 - frozen.tv_nsec % 1000000;
        }
        *time = frozen;
    }
    return result;
}
