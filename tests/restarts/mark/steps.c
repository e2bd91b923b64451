/* Preloaded into a server. At one step of writing the fence mark, the server dies, waits, or gets an error. The fence mark
   is a file that keeps fences rising if all other data is lost.

   The folder in the environment variable STEPS contains two files. `fault` is two numbers of 8 bytes: the step (1 create,
   2 first half of the write, 3 the rest of it, 4 fdatasync, 5 rename, 6 fsync of the folder; 0 for none), and the action:
   -1 the server dies after the step, -2 it waits before the step until the test changes the file, and any other number is
   the errno that the step fails with. Each completed step appends its name to `done`. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

enum { CREATE = 1, HALF, WRITE, FDATASYNC, RENAME, FSYNC };

static const char *const NAMES[] = {"", "create\n", "half\n", "write\n", "fdatasync\n", "rename\n", "fsync\n"};

static int open_in_folder(const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("STEPS"), name);
    int fd = REAL(open)(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) abort();
    return fd;
}

static volatile long long *fault(void) {
    static volatile long long *file;
    if (!file) {
        int fd = open_in_folder("fault", O_RDONLY);
        volatile long long *mapped = mmap(0, 2 * sizeof *file, PROT_READ, MAP_SHARED, fd, 0);
        close(fd);
        if (mapped == MAP_FAILED) abort();
        file = mapped;
    }
    return file;
}

/* Returns 1 if the step may run, else 0. Waits while the action is -2; sets errno if the step must fail. */
static int may_run(int step) {
    while (fault()[0] == step && fault()[1] == -2) usleep(1000);
    if (fault()[0] != step || fault()[1] < 0) return 1;
    errno = (int)fault()[1];
    return 0;
}

static void done(int step) {
    int log = open_in_folder("done", O_WRONLY | O_APPEND | O_CREAT);
    if (REAL(write)(log, NAMES[step], strlen(NAMES[step])) < 0) abort();
    close(log);
    if (fault()[0] == step && fault()[1] == -1) kill(getpid(), SIGKILL);
}

static int is_temporary_mark(const char *path) {
    const char *name = strrchr(path, '/');
    const char *end = strrchr(path, '.');
    return name && end && strncmp(name, "/dlock-", 7) == 0 && strcmp(end, ".tmp") == 0;
}

static int is_temporary_mark_fd(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_temporary_mark(path);
}

int open64(const char *path, int flags, ...) {
    va_list rest;
    va_start(rest, flags);
    int mode = flags & O_CREAT ? va_arg(rest, int) : 0;
    va_end(rest);
    if (!is_temporary_mark(path)) return REAL(open64)(path, flags, mode);
    if (!may_run(CREATE)) return -1;
    int fd = REAL(open64)(path, flags, mode);
    if (fd >= 0) done(CREATE);
    return fd;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (fd <= 2 || !is_temporary_mark_fd(fd)) return REAL(write)(fd, bytes, count);
    if (!may_run(HALF)) return -1;
    ssize_t half = REAL(write)(fd, bytes, count / 2);
    if (half < 0) return half;
    done(HALF);
    if (!may_run(WRITE)) return -1;
    ssize_t rest = REAL(write)(fd, (const char *)bytes + half, count - half);
    if (rest < 0) return rest;
    done(WRITE);
    return half + rest;
}

int fdatasync(int fd) {
    if (!is_temporary_mark_fd(fd)) return REAL(fdatasync)(fd);
    if (!may_run(FDATASYNC)) return -1;
    int result = REAL(fdatasync)(fd);
    if (result == 0) done(FDATASYNC);
    return result;
}

int rename(const char *from, const char *to) {
    if (!is_temporary_mark(from)) return REAL(rename)(from, to);
    if (!may_run(RENAME)) return -1;
    int result = REAL(rename)(from, to);
    if (result == 0) done(RENAME);
    return result;
}

int fsync(int fd) {
    struct stat found;
    if (fd <= 2 || fstat(fd, &found) != 0 || !S_ISDIR(found.st_mode)) return REAL(fsync)(fd);
    if (!may_run(FSYNC)) return -1;
    int result = REAL(fsync)(fd);
    if (result == 0) done(FSYNC);
    return result;
}
