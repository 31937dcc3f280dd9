/* Loaded by LD_PRELOAD: what a network disk, or a full one, may answer.

   The file SIGHTLINE_TEST_DISK, while it exists, says "OPERATION ERRNO SKIP COUNT BELOW": the operation on files below
   a path works SKIP times in a process, then fails COUNT times. Operations are write, link, rename and utime;
   "link-done" and "rename-done" do what they should and then fail, as if an answer was lost and the request sent once
   more; "open" fails for files that are there until their directory is listed, as if the absence of a name was
   remembered. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static int calls, listed;

/* Whether the operation on this path is the one that fails; what it says of how often and how. */
static int is_meant(const char *operation, const char *path, int *number, int *skip, int *count) {
  const char *control = getenv("SIGHTLINE_TEST_DISK");
  char text[4096] = "", wanted[64], below[4096];
  int before = errno;
  int file = control ? NEXT(open)(control, O_RDONLY | O_CLOEXEC) : -1;
  if (file < 0) {
    errno = before;
    return 0;
  }
  ssize_t length = NEXT(read)(file, text, sizeof text - 1);
  NEXT(close)(file);
  errno = before;
  if (length <= 0 || sscanf(text, "%63s %d %d %d %4095[^\n]", wanted, number, skip, count, below) != 5) return 0;
  return !strcmp(operation, wanted) && !strncmp(path, below, strlen(below));
}

static int fails(const char *operation, const char *path) {
  int number, skip, count;
  if (!is_meant(operation, path, &number, &skip, &count)) return 0;
  int call = __sync_fetch_and_add(&calls, 1);
  if (call < skip || call >= skip + count) return 0;
  errno = number;
  return 1;
}

static int descriptor_fails(const char *operation, int descriptor) {
  char link[64], path[4096];
  snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
  int before = errno;
  ssize_t length = readlink(link, path, sizeof path - 1);
  errno = before;
  if (length < 0) return 0;
  path[length] = 0;
  return fails(operation, path);
}

ssize_t write(int descriptor, const void *from, size_t count) {
  return descriptor_fails("write", descriptor) ? -1 : NEXT(write)(descriptor, from, count);
}

int link(const char *from, const char *to) {
  if (fails("link", to)) return -1;
  int done = NEXT(link)(from, to);
  return !done && fails("link-done", to) ? -1 : done;
}

int rename(const char *from, const char *to) {
  if (fails("rename", to)) return -1;
  int done = NEXT(rename)(from, to);
  return !done && fails("rename-done", to) ? -1 : done;
}

int utimensat(int directory, const char *path, const struct timespec times[2], int flags) {
  return fails("utime", path) ? -1 : NEXT(utimensat)(directory, path, times, flags);
}

DIR *opendir(const char *path) {
  int number, skip, count;
  if (is_meant("open", path, &number, &skip, &count)) listed = 1;
  return NEXT(opendir)(path);
}

#define OPEN(name)                                                      \
  int name(const char *path, int flags, ...) {                          \
    va_list more;                                                       \
    va_start(more, flags);                                              \
    mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(more, int) : 0; \
    va_end(more);                                                       \
    if (!listed && !(flags & O_CREAT) && fails("open", path)) return -1; \
    return NEXT(name)(path, flags, mode);                               \
  }
OPEN(open)
OPEN(open64)
