/* Injects disk faults; loaded before libc (LD_PRELOAD). FAULT_PREFIX names a directory. The file
 * FAULT_CONTROL holds "SKIP ERRNO COUNT": after SKIP calls that change files below the directory,
 * COUNT calls fail with ERRNO (0: all later calls). An empty or absent control file injects
 * nothing. The first failure creates FAULT_CONTROL.hit. Names are compared as they are passed:
 * absolute paths only. System calls that bypass libc are not reached. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char armed[64];
static long calls;

static int is_path_below_prefix(const char *path) {
    const char *prefix = getenv("FAULT_PREFIX");
    return prefix && path && strncmp(path, prefix, strlen(prefix)) == 0;
}

static int is_below_prefix(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return is_path_below_prefix(path);
}

/* The error that this call has to fail with; 0 to let it pass. */
static int fault(int is_below) {
    const char *control = getenv("FAULT_CONTROL");
    char text[64] = "";
    long skip, count;
    int error, result = 0;
    if (!control || !is_below) return 0;
    int file = open(control, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    if (length <= 0) text[0] = 0;
    pthread_mutex_lock(&lock);
    if (strcmp(text, armed) != 0) {
        memcpy(armed, text, sizeof armed);
        calls = 0;
    }
    if (sscanf(text, "%ld %d %ld", &skip, &error, &count) == 3) {
        long call = calls++;
        if (call >= skip && (count == 0 || call < skip + count)) result = error;
    }
    pthread_mutex_unlock(&lock);
    if (result) {
        char hit[4096];
        snprintf(hit, sizeof hit, "%s.hit", control);
        int marker = open(hit, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
        if (marker >= 0) close(marker);
    }
    return result;
}

#define FAULTY(type, name, parameters, arguments, is_below)           \
    type name parameters {                                            \
        static type(*real) parameters;                                \
        if (!real) real = (type(*) parameters)dlsym(RTLD_NEXT, #name); \
        int error = fault(is_below);                                  \
        if (error) {                                                  \
            errno = error;                                            \
            return -1;                                                \
        }                                                             \
        return real arguments;                                        \
    }

FAULTY(ssize_t, write, (int fd, const void *bytes, size_t count), (fd, bytes, count), is_below_prefix(fd))
FAULTY(ssize_t, pwrite, (int fd, const void *bytes, size_t count, off_t at), (fd, bytes, count, at), is_below_prefix(fd))
FAULTY(ssize_t, pwrite64, (int fd, const void *bytes, size_t count, off64_t at), (fd, bytes, count, at), is_below_prefix(fd))
FAULTY(int, fsync, (int fd), (fd), is_below_prefix(fd))
FAULTY(int, fdatasync, (int fd), (fd), is_below_prefix(fd))
FAULTY(int, ftruncate, (int fd, off_t length), (fd, length), is_below_prefix(fd))
FAULTY(int, ftruncate64, (int fd, off64_t length), (fd, length), is_below_prefix(fd))
FAULTY(int, rename, (const char *from, const char *to), (from, to), is_path_below_prefix(to))
FAULTY(int, link, (const char *from, const char *to), (from, to), is_path_below_prefix(to))
FAULTY(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), is_path_below_prefix(to))
FAULTY(int, unlink, (const char *path), (path), is_path_below_prefix(path))
FAULTY(int, mkdir, (const char *path, mode_t mode), (path, mode), is_path_below_prefix(path))
