/* Preloaded into a server: its wall clock is off by as many microseconds as the file named by WALL_CLOCK holds first, or
   stands at the second number of that file where it is not 0. Every other clock is the machine's own. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>

static volatile long long *set(void) {
    static volatile long long *file;
    if (!file) {
        int fd = open(getenv("WALL_CLOCK"), O_RDONLY);
        volatile long long *mapped = mmap(0, 2 * sizeof *file, PROT_READ, MAP_SHARED, fd, 0);
        if (fd < 0 || mapped == MAP_FAILED) abort();
        file = mapped;
    }
    return file;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, time);
    if (result == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        long long off = set()[0], stands_at = set()[1];
        long long us = stands_at ? stands_at : time->tv_sec * 1000000LL + time->tv_nsec / 1000 + off;
        time->tv_sec = us / 1000000;
        time->tv_nsec = us % 1000000 * 1000 + (stands_at ? 0 : time->tv_nsec % 1000);
    }
    return result;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int result = clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return result;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}
