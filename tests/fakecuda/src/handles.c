/* Physical memory: one sparse memfd per device, and handles that are never used twice (C1..C4, H1..H3). */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "state.h"

static const CUhandle first_handle = 0x5a0000000000ull;

static bool memfd_ready(struct device *device, uint64_t nbytes) {
    if (device->memfd <= 0) device->memfd = memfd_create("fakecuda", MFD_CLOEXEC);
    return device->memfd > 0 && ftruncate(device->memfd, (off_t)nbytes) == 0;
}

/* C4: new memory holds whatever the tests say, so that nothing can rely on zeros. */
static bool poison(const struct physical *physical) {
    char block[65536];
    if (g.settings.poison == POISON_OFF) return true;
    memset(block, (int)g.settings.poison, sizeof block);
    for (uint64_t done = 0; done < physical->nbytes;) {
        size_t part = physical->nbytes - done < sizeof block ? (size_t)(physical->nbytes - done) : sizeof block;
        ssize_t wrote = pwrite(physical->fd, block, part, (off_t)(physical->offset + done));
        if (wrote <= 0) return false;
        done += (uint64_t)wrote;
    }
    return true;
}

static void physical_free(struct physical *physical) {
    if (physical->exportable) close(physical->fd); /* its bytes live as long as a descriptor of it does */
    else
        fallocate(physical->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)physical->offset,
                  (off_t)physical->nbytes);
    if (!physical->foreign) g.device[physical->device].used -= physical->nbytes;
    free(physical);
}

static bool place(struct physical *physical, bool exportable) {
    struct device *d = &g.device[physical->device];
    physical->exportable = exportable;
    if (exportable) {
        physical->fd = memfd_create("fakecuda-handle", MFD_CLOEXEC);
        return physical->fd >= 0 && ftruncate(physical->fd, (off_t)physical->nbytes) == 0;
    }
    if (!memfd_ready(d, d->next_offset + physical->nbytes)) return false;
    physical->fd = d->memfd;
    physical->offset = d->next_offset;
    d->next_offset += physical->nbytes;
    return true;
}

CUresult physical_new(int device, size_t nbytes, const CUprop *prop, struct physical **out) {
    struct device *d = &g.device[device];
    uint64_t used = used_on(device);
    if (used > g.settings.memory || nbytes > g.settings.memory - used) return OUT_OF_MEMORY;
    struct physical *physical = malloc(sizeof *physical);
    if (physical == NULL) return OUT_OF_MEMORY;
    *physical = (struct physical){.device = device, .fd = -1, .nbytes = nbytes, .prop = *prop};
    if (!place(physical, (prop->handle_types & HANDLE_POSIX_FD) != 0)) {
        if (physical->exportable && physical->fd >= 0) close(physical->fd);
        free(physical);
        return OUT_OF_MEMORY;
    }
    d->used += nbytes;
    if (!poison(physical)) {
        physical_free(physical);
        return OUT_OF_MEMORY;
    }
    if (d->used > g.peak_used) g.peak_used = d->used;
    *out = physical;
    return OK;
}

CUresult handle_new(struct physical *physical, CUhandle *out) {
    if (g.handle_count == g.handle_room) {
        size_t room = g.handle_room == 0 ? 256 : 2 * g.handle_room;
        struct handle **larger = realloc(g.handles, room * sizeof *larger);
        if (larger == NULL) return OUT_OF_MEMORY;
        g.handles = larger;
        g.handle_room = room;
    }
    struct handle *handle = malloc(sizeof *handle);
    if (handle == NULL) return OUT_OF_MEMORY;
    *handle = (struct handle){.value = first_handle + g.handle_count, .physical = physical, .refs = 1};
    physical->users++;
    g.handles[g.handle_count++] = handle;
    g.live_handles++;
    *out = handle->value;
    return OK;
}

struct handle *handle_live(CUhandle value, const char *rule) {
    if (value < first_handle || value - first_handle >= g.handle_count) {
        broke(rule, "%#llx was never a handle", value);
        return NULL;
    }
    struct handle *handle = g.handles[value - first_handle];
    if (handle == NULL || handle->refs == 0) {
        broke(rule, "handle %#llx was released before", value);
        return NULL;
    }
    return handle;
}

static struct handle *still_here(CUhandle value) {
    if (value < first_handle || value - first_handle >= g.handle_count) return NULL;
    struct handle *handle = g.handles[value - first_handle];
    return handle != NULL && handle->refs > 0 ? handle : NULL;
}

int device_of_handle(CUhandle value) {
    const struct handle *handle = still_here(value);
    return handle != NULL ? handle->physical->device : NO_TARGET;
}

int device_of_prop(const CUprop *prop) {
    return prop != NULL && prop->location.type == LOCATION_DEVICE ? prop->location.id : NO_TARGET;
}

void handle_settle(struct handle *handle) {
    if (handle->refs > 0 || handle->mappings > 0) return; /* H1 */
    g.handles[handle->value - first_handle] = NULL;
    if (--handle->physical->users == 0) physical_free(handle->physical);
    free(handle);
}

static CUresult check_prop(const CUprop *prop, bool host_numa) {
    static const unsigned char zero[4];
    const struct settings *s = &g.settings;
    if (!s->vmm) return NOT_SUPPORTED;
    int supported = (s->posix_fd ? HANDLE_POSIX_FD : 0) | (s->fabric ? HANDLE_FABRIC : 0);
    if (prop == NULL || prop->type != PINNED) return REFUSE("C1", "the allocation type is not PINNED");
    bool device = prop->location.type == LOCATION_DEVICE && valid_device(prop->location.id);
    if (!device && !(host_numa && prop->location.type == LOCATION_HOST_NUMA && prop->location.id == 0))
        return REFUSE("C2", "location type %d, id %d is not simulated", prop->location.type, prop->location.id);
    if (prop->win32_metadata != NULL || prop->usage != 0 || memcmp(prop->reserved, zero, sizeof zero) != 0)
        return REFUSE("C1", "a reserved field of the properties is not zero");
    if (prop->rdma > 1 || prop->compression > 1 || (prop->rdma && !s->rdma))
        return REFUSE("C1", "compression %d, rdma %d: not supported", prop->compression, prop->rdma);
    return (prop->handle_types & ~supported) != 0 ? NOT_SUPPORTED : OK;
}

CUresult impl_cuMemGetAllocationGranularity(size_t *nbytes, const CUprop *prop, int option) {
    CUresult result = check_prop(prop, g.settings.host_numa != 0);
    if (result != OK) return result;
    if (nbytes == NULL || option < GRANULARITY_MINIMUM || option > GRANULARITY_RECOMMENDED) return INVALID_VALUE;
    *nbytes = granularity_on(device_of_prop(prop));
    if (option == GRANULARITY_RECOMMENDED && *nbytes < g.settings.granularity_rec) *nbytes = g.settings.granularity_rec;
    return OK;
}

CUresult impl_cuMemCreate(CUhandle *handle, size_t nbytes, const CUprop *prop, unsigned long long flags) {
    struct physical *physical = NULL;
    CUresult result = check_prop(prop, false);
    if (result != OK) return result;
    if (handle == NULL) return INVALID_VALUE;
    if ((prop->handle_types & HANDLE_FABRIC) != 0 && !g.settings.imex) return NOT_PERMITTED; /* no IMEX channel */
    if (flags != 0) return REFUSE("C1", "flags is %#llx, must be 0", flags);
    const unsigned long long unit = granularity_on(prop->location.id);
    if (nbytes == 0 || nbytes % unit != 0)
        return REFUSE("C1", "size %zu is not a multiple of the granularity %llu", nbytes, unit);
    result = physical_new(prop->location.id, nbytes, prop, &physical);
    if (result != OK) return result;
    result = handle_new(physical, handle);
    if (result != OK) physical_free(physical);
    return result;
}

CUresult impl_cuMemRelease(CUhandle value) {
    struct handle *handle = handle_live(value, "H3");
    if (handle == NULL) return INVALID_VALUE;
    if (g.settings.release_waits) { /* a driver whose release waits for the device; the lock is dropped meanwhile */
        for (int device = 0; device < MAX_DEVICES; device++) work_finish_device(device);
        handle = handle_live(value, "H3");
        if (handle == NULL) return INVALID_VALUE;
    }
    if (--handle->refs == 0) g.live_handles--;
    handle_settle(handle);
    return OK;
}

CUresult impl_cuMemRetainAllocationHandle(CUhandle *handle, void *address) {
    const struct mapping *mapping = mapping_at((CUdeviceptr)(uintptr_t)address);
    if (handle == NULL) return INVALID_VALUE;
    if (mapping == NULL) return REFUSE("H2", "nothing is mapped at %p", address);
    if (mapping->handle->refs++ == 0) g.live_handles++;
    *handle = mapping->handle->value;
    return OK;
}

CUresult impl_cuMemGetAllocationPropertiesFromHandle(CUprop *prop, CUhandle value) {
    const struct handle *handle = handle_live(value, "H3");
    if (handle == NULL || prop == NULL) return INVALID_VALUE;
    *prop = handle->physical->prop;
    return OK;
}

/* An exported descriptor is that of the handle's own memfd, with this behind its bytes. */
struct ticket {
    char magic[8];
    pid_t process;
    CUhandle handle;
    uint64_t nbytes;
    CUprop prop;
};
static const char magic[8] = "fakecud";

CUresult impl_cuMemExportToShareableHandle(void *shared, CUhandle value, int type, unsigned long long flags) {
    const struct handle *handle = handle_live(value, "H3");
    if (handle == NULL || shared == NULL || flags != 0) return INVALID_VALUE;
    if (type != HANDLE_POSIX_FD) return NOT_SUPPORTED;
    const struct physical *physical = handle->physical;
    if ((physical->prop.handle_types & type) == 0)
        return REFUSE("C3", "handle %#llx was not created for export as type %d", value, type);
    struct ticket ticket = {.process = getpid(), .handle = value, .nbytes = physical->nbytes, .prop = physical->prop};
    memcpy(ticket.magic, magic, sizeof magic);
    if (pwrite(physical->fd, &ticket, sizeof ticket, (off_t)physical->nbytes) != (ssize_t)sizeof ticket)
        return OUT_OF_MEMORY;
    int fd = fcntl(physical->fd, F_DUPFD_CLOEXEC, 3);
    if (fd < 0) return OUT_OF_MEMORY;
    memcpy(shared, &fd, sizeof fd);
    return OK;
}

static bool read_ticket(int fd, struct ticket *ticket) {
    off_t end = lseek(fd, 0, SEEK_END);
    return end > (off_t)sizeof *ticket &&
           pread(fd, ticket, sizeof *ticket, end - (off_t)sizeof *ticket) == (ssize_t)sizeof *ticket &&
           memcmp(ticket->magic, magic, sizeof magic) == 0 && ticket->nbytes + sizeof *ticket == (uint64_t)end;
}

/* Another process's memory, or that of a handle which is gone: an open descriptor keeps it alive (an assumption). */
static CUresult adopt(CUhandle *out, int fd, const struct ticket *ticket) {
    struct physical *physical = malloc(sizeof *physical);
    if (physical == NULL) return OUT_OF_MEMORY;
    *physical = (struct physical){.device = ticket->prop.location.id,
                                  .fd = fcntl(fd, F_DUPFD_CLOEXEC, 3),
                                  .exportable = true,
                                  .foreign = true,
                                  .owner = ticket->process,
                                  .nbytes = ticket->nbytes,
                                  .prop = ticket->prop};
    CUresult result = physical->fd >= 0 ? handle_new(physical, out) : OUT_OF_MEMORY;
    if (result == OK) return OK;
    if (physical->fd >= 0) close(physical->fd);
    free(physical);
    return result;
}

CUresult impl_cuMemImportFromShareableHandle(CUhandle *out, void *shared, int type) {
    struct ticket ticket = {0};
    if (out == NULL) return INVALID_VALUE;
    if (type != HANDLE_POSIX_FD) return NOT_SUPPORTED;
    int fd = (int)(intptr_t)shared;
    if (!read_ticket(fd, &ticket) || !valid_device(ticket.prop.location.id)) return INVALID_VALUE;
    const struct handle *handle = ticket.process == getpid() ? still_here(ticket.handle) : NULL;
    return handle != NULL ? handle_new(handle->physical, out) : adopt(out, fd, &ticket);
}
