/* Loaded by LD_PRELOAD: while the file SIGHTLINE_TEST_EIO exists, reads below SIGHTLINE_TEST_EIO_BELOW fail with EIO,
   as those of a network disk whose server is gone. Every failure leaves a line in SIGHTLINE_TEST_EIO.log. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int fails(int descriptor) {
  const char *flag = getenv("SIGHTLINE_TEST_EIO"), *below = getenv("SIGHTLINE_TEST_EIO_BELOW");
  char link[64], path[4096], log[4096];
  if (!flag || !below || access(flag, F_OK)) return 0;
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  ssize_t length = readlink(link, path, sizeof path - 1);
  if (length < 0) return 0;
  path[length] = 0;
  if (strncmp(path, below, strlen(below))) return 0;
  snprintf(log, sizeof log, "%s.log", flag);
  int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0600);
  if (out >= 0) {
    dprintf(out, "%d %s\n", getpid(), path);
    close(out);
  }
  errno = EIO;
  return 1;
}

#define READ(name, offset_type)                                                        \
  ssize_t name(int descriptor, void *to, size_t count, offset_type offset) {           \
    static ssize_t (*next)(int, void *, size_t, offset_type);                          \
    if (!next) next = dlsym(RTLD_NEXT, #name);                                         \
    return fails(descriptor) ? -1 : next(descriptor, to, count, offset);               \
  }
READ(pread, off_t)
READ(pread64, off64_t)

ssize_t read(int descriptor, void *to, size_t count) {
  static ssize_t (*next)(int, void *, size_t);
  if (!next) next = dlsym(RTLD_NEXT, "read");
  return fails(descriptor) ? -1 : next(descriptor, to, count);
}
