/* Preloaded into a server. Simulates a disk that can be full, and records the data that would survive a power cut.

   The folder named by DISK contains two files. `room` is the number of bytes that may still be written (8 bytes; a
   negative number means no limit). Each fsync and fdatasync of a file appends the line "inode birth size" to `synced`, with
   the size of the file at the call. The birth is the creation time in ns: it distinguishes the file from an earlier one
   with the same inode. Standard output and standard error, which are the server's log, are not on this disk. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int open_in_folder(const char *name, int flags) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", getenv("DISK"), name);
    int fd = open(path, flags | O_CLOEXEC, 0600);
    if (fd < 0) abort();
    return fd;
}

static volatile long long *room(void) {
    static volatile long long *file;
    if (!file) {
        int fd = open_in_folder("room", O_RDWR);
        file = mmap(0, sizeof *file, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
        if (file == MAP_FAILED) abort();
    }
    return file;
}

static int is_file(int fd) {
    struct stat found;
    return fd > 2 && fstat(fd, &found) == 0 && S_ISREG(found.st_mode);
}

ssize_t write(int fd, const void *bytes, size_t count) {
    static ssize_t (*real)(int, const void *, size_t);
    if (!real) real = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (*room() < 0 || !is_file(fd)) return real(fd, bytes, count);
    if (*room() == 0 && count > 0) {
        errno = ENOSPC;
        return -1;
    }
    ssize_t written = real(fd, bytes, (long long)count > *room() ? (size_t)*room() : count);
    if (written > 0) *room() -= written;
    return written;
}

static int sync_with(const char *name, int fd) {
    int (*real)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    struct statx before;
    int file = fd > 2 && statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS | STATX_BTIME, &before) == 0 &&
               S_ISREG(before.stx_mode);
    int result = real(fd);
    if (file && result == 0) {
        char line[96];
        unsigned long long birth = before.stx_btime.tv_sec * 1000000000ULL + before.stx_btime.tv_nsec;
        int length = snprintf(line, sizeof line, "%llu %llu %llu\n", (unsigned long long)before.stx_ino, birth,
                              (unsigned long long)before.stx_size);
        int synced = open_in_folder("synced", O_WRONLY | O_APPEND | O_CREAT);
        ssize_t (*put)(int, const void *, size_t) = (ssize_t(*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
        if (put(synced, line, length) != length) abort();
        close(synced);
    }
    return result;
}

int fsync(int fd) { return sync_with("fsync", fd); }

int fdatasync(int fd) { return sync_with("fdatasync", fd); }
