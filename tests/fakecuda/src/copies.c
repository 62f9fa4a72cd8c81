/* Copies and fills, by pread and pwrite on the memfd: a bad host pointer is an error here, never a crash.
 *
 * Per S1 only DtoH synchronises; fills, HtoD and DtoD return with their work in flight on the stream. */
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state.h"

enum { BLOCK = 65536 };

/* A run of bytes in one mapping. */
struct part {
    struct mapping *mapping;
    int fd;
    uint64_t offset;
    size_t nbytes;
};

static struct part part_at(CUdeviceptr address, size_t nbytes) {
    struct mapping *mapping = mapping_at(address);
    size_t skip = (size_t)(address - mapping->address);
    const struct physical *physical = mapping->handle->physical;
    size_t rest = mapping->nbytes - skip;
    return (struct part){mapping, physical->fd, physical->offset + skip, rest < nbytes ? rest : nbytes};
}

/* Whether the memory went with the process that exported it (OUTLIVES=0). */
static bool is_gone(const struct physical *physical) {
    return !g.settings.outlives && physical->foreign && kill(physical->owner, 0) != 0;
}

/* Every byte is mapped and the current device may reach it; anything else is BAD_COPY's code (E1). */
static CUresult reachable(CUdeviceptr address, size_t nbytes, unsigned access) {
    int device = here();
    if (nbytes > (size_t)-1 - address) return (CUresult)g.settings.bad_copy;
    for (CUdeviceptr at = address; at < address + nbytes;) {
        const struct mapping *mapping = mapping_at(at);
        if (mapping != NULL && is_gone(mapping->handle->physical)) return (CUresult)g.settings.bad_copy;
        if (mapping == NULL || (mapping->access[device] & access) != access) return (CUresult)g.settings.bad_copy;
        at = mapping->address + mapping->nbytes;
    }
    return OK;
}

static void use(CUdeviceptr address, size_t nbytes, int slot, uint64_t sequence) {
    for (CUdeviceptr at = address; at < address + nbytes;) {
        struct mapping *mapping = mapping_at(at);
        work_use(mapping, slot, sequence);
        at = mapping->address + mapping->nbytes;
    }
}

/* Raw system calls: a sanitizer's wrapper would touch the host pointer itself, and crash on a bad one. */
static CUresult transfer(long number, CUdeviceptr device, uintptr_t host, size_t nbytes) {
    while (nbytes > 0) {
        struct part part = part_at(device, nbytes);
        long done = syscall(number, part.fd, host, part.nbytes, part.offset);
        if (done <= 0) return REFUSE("P1", "the host address %#lx cannot be read or written", (unsigned long)host);
        device += (size_t)done;
        host += (size_t)done;
        nbytes -= (size_t)done;
    }
    return OK;
}

static CUresult to_device(CUdeviceptr to, const void *from, size_t nbytes, CUstream stream) {
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    if (nbytes == 0) return OK;
    CUresult result = reachable(to, nbytes, ACCESS_READWRITE);
    if (result == OK) result = transfer(SYS_pwrite64, to, (uintptr_t)from, nbytes);
    if (result == OK) use(to, nbytes, slot, work_submit(slot, false));
    return result;
}

static CUresult to_host(void *to, CUdeviceptr from, size_t nbytes, CUstream stream, bool wait) {
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    if (nbytes == 0) return OK;
    CUresult result = reachable(from, nbytes, ACCESS_READ);
    if (result == OK) result = transfer(SYS_pread64, from, (uintptr_t)to, nbytes);
    if (result != OK) return result;
    use(from, nbytes, slot, work_submit(slot, false));
    if (wait) work_finish_slot(slot);
    return OK;
}

static CUresult write_all(CUdeviceptr to, const char *block, size_t nbytes) {
    return transfer(SYS_pwrite64, to, (uintptr_t)block, nbytes);
}

static CUresult device_to_device(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream) {
    char block[BLOCK];
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    if (nbytes == 0) return OK;
    CUresult result = reachable(from, nbytes, ACCESS_READ);
    if (result == OK) result = reachable(to, nbytes, ACCESS_READWRITE);
    if (result != OK) return result;
    if (to < from + nbytes && from < to + nbytes)
        return REFUSE("P2", "the source %#llx and the target %#llx overlap", from, to);
    for (size_t done = 0; done < nbytes && result == OK;) {
        size_t part = nbytes - done < BLOCK ? nbytes - done : BLOCK;
        result = transfer(SYS_pread64, from + done, (uintptr_t)block, part);
        if (result == OK) result = write_all(to + done, block, part);
        done += part;
    }
    uint64_t sequence = work_submit(slot, false);
    use(from, nbytes, slot, sequence);
    use(to, nbytes, slot, sequence);
    return result;
}

/* A pattern of width bytes (1 or 4), count times. */
static CUresult fill(CUdeviceptr to, unsigned int value, size_t width, size_t count, CUstream stream) {
    char block[BLOCK];
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    if (to % width != 0) return REFUSE("P3", "address %#llx is not a multiple of %zu", to, width);
    if (count > (size_t)-1 / width) return INVALID_VALUE;
    size_t nbytes = count * width;
    if (nbytes == 0) return OK;
    CUresult result = reachable(to, nbytes, ACCESS_READWRITE);
    if (result != OK) return result;
    size_t filled = nbytes < BLOCK ? nbytes : BLOCK;
    if (width == 1) memset(block, (int)value, filled);
    else
        for (size_t i = 0; i < filled; i += width) memcpy(block + i, &value, width);
    for (size_t done = 0; done < nbytes && result == OK;) {
        size_t part = nbytes - done < BLOCK ? nbytes - done : BLOCK;
        result = write_all(to + done, block, part);
        done += part;
    }
    use(to, nbytes, slot, work_submit(slot, true));
    return result;
}

CUresult impl_cuMemcpyHtoD(CUdeviceptr to, const void *from, size_t nbytes) { return to_device(to, from, nbytes, 0); }
CUresult impl_cuMemcpyDtoH(void *to, CUdeviceptr from, size_t nbytes) { return to_host(to, from, nbytes, 0, true); }
CUresult impl_cuMemcpyDtoD(CUdeviceptr to, CUdeviceptr from, size_t nbytes) {
    return device_to_device(to, from, nbytes, 0);
}
CUresult impl_cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t nbytes, CUstream stream) {
    return to_device(to, from, nbytes, stream);
}
CUresult impl_cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t nbytes, CUstream stream) {
    return to_host(to, from, nbytes, stream, false);
}
CUresult impl_cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t nbytes, CUstream stream) {
    return device_to_device(to, from, nbytes, stream);
}
CUresult impl_cuMemsetD8(CUdeviceptr to, unsigned char value, size_t count) { return fill(to, value, 1, count, 0); }
CUresult impl_cuMemsetD32(CUdeviceptr to, unsigned int value, size_t count) { return fill(to, value, 4, count, 0); }
CUresult impl_cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t count, CUstream stream) {
    return fill(to, value, 1, count, stream);
}
CUresult impl_cuMemsetD32Async(CUdeviceptr to, unsigned int value, size_t count, CUstream stream) {
    return fill(to, value, 4, count, stream);
}
