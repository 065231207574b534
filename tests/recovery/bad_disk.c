/* Preloaded into a sidecar: while the file that BAD_DISK names exists, nothing reaches the disk. */
#define _GNU_SOURCE
#include <errno.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

static int sync_or_fail(long number, int descriptor) {
    const char *flag = getenv("BAD_DISK");
    if (flag != NULL && access(flag, F_OK) == 0) {
        errno = EIO;
        return -1;
    }
    return (int)syscall(number, descriptor);
}

int fsync(int descriptor) { return sync_or_fail(SYS_fsync, descriptor); }
int fdatasync(int descriptor) { return sync_or_fail(SYS_fdatasync, descriptor); }
