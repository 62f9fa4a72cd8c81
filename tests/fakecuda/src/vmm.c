/* Reserve, map, access, unmap: rules R1..R4, M1..M3, A1..A2, U1..U3. No current context is needed (X1). */
#include <stdlib.h>

#include "state.h"

static bool aligned(unsigned long long value) { return value % g.settings.granularity == 0; }

CUresult impl_cuMemAddressReserve(CUdeviceptr *address, size_t nbytes, size_t alignment, CUdeviceptr hint,
                                  unsigned long long flags) {
    const size_t two_mib = (size_t)2 << 20;
    size_t hint_unit = alignment > two_mib ? alignment : two_mib;
    if (address == NULL) return INVALID_VALUE;
    if (!g.settings.vmm) return NOT_SUPPORTED;
    if (flags != 0) return REFUSE("R1", "flags is %#llx, must be 0", flags);
    if (nbytes == 0 || !aligned(nbytes)) return REFUSE("R1", "size %zu is not a multiple of the granularity", nbytes);
    if ((alignment & (alignment - 1)) != 0) return REFUSE("R1", "alignment %zu is not a power of two", alignment);
    if (hint % hint_unit != 0) return REFUSE("R2", "hint %#llx is not a multiple of %zu", hint, hint_unit);
    if (nbytes > g.settings.va_limit) return OUT_OF_MEMORY;
    /* Assumed: what is reserved suits every device. */
    for (int device = 0; device < MAX_DEVICES; device++)
        if (alignment < granularity_on(device)) alignment = granularity_on(device);
    return reservation_add(address, nbytes, alignment, hint);
}

CUresult impl_cuMemAddressFree(CUdeviceptr address, size_t nbytes) {
    struct reservation *reservation = reservation_at(address);
    if (reservation == NULL) return REFUSE("R3", "nothing is reserved at %#llx", address);
    if (reservation->address != address || reservation->nbytes != nbytes)
        return REFUSE("R3", "[%#llx, +%zu) is not the reservation [%#llx, +%zu)", address, nbytes,
                      reservation->address, reservation->nbytes);
    if (reservation->allocated) return REFUSE("D1", "%#llx was allocated, not reserved", address);
    if (reservation->live > 0)
        return REFUSE("R4", "[%#llx, +%zu) still has %zu mappings", address, nbytes, reservation->live);
    reservation_drop(reservation);
    return OK;
}

CUresult mapping_add(struct reservation *reservation, CUdeviceptr address, size_t nbytes, struct handle *handle) {
    struct mapping *mapping = calloc(1, sizeof *mapping);
    if (mapping == NULL) return OUT_OF_MEMORY;
    mapping->address = address;
    mapping->nbytes = nbytes;
    mapping->handle = handle; /* A1: no access for anyone */
    size_t first = (address - reservation->address) / g.settings.granularity;
    for (size_t i = 0; i < nbytes / g.settings.granularity; i++) reservation->slots[first + i] = mapping;
    reservation->live++;
    handle->mappings++;
    if (++g.live_mappings > g.peak_mappings) g.peak_mappings = g.live_mappings;
    return OK;
}

void mapping_remove(struct reservation *reservation, struct mapping *mapping) {
    size_t first = (mapping->address - reservation->address) / g.settings.granularity;
    for (size_t i = 0; i < mapping->nbytes / g.settings.granularity; i++) reservation->slots[first + i] = NULL;
    reservation->live--;
    g.live_mappings--;
    g.described -= mapping->described;
    mapping->handle->mappings--;
    handle_settle(mapping->handle);
    free(mapping->uses);
    free(mapping);
}

CUresult impl_cuMemMap(CUdeviceptr address, size_t nbytes, size_t offset, CUhandle value, unsigned long long flags) {
    struct handle *handle = handle_live(value, "H3");
    if (handle == NULL) return INVALID_VALUE;
    if (flags != 0 || offset != 0)
        return REFUSE("M1", "offset is %zu and flags %#llx, both must be 0", offset, flags);
    if (nbytes != handle->physical->nbytes)
        return REFUSE("M1", "size %zu is not the handle's %llu", nbytes, (unsigned long long)handle->physical->nbytes);
    if (address % granularity_on(handle->physical->device) != 0)
        return REFUSE("M2", "address %#llx is not a multiple of the granularity", address);
    struct reservation *reservation = reservation_of(address, nbytes);
    if (reservation == NULL) return REFUSE("M2", "[%#llx, +%zu) is not inside one reservation", address, nbytes);
    for (size_t done = 0; done < nbytes; done += g.settings.granularity)
        if (mapping_at(address + done) != NULL)
            return REFUSE("M2", "something is mapped at %#llx already", address + done);
    return mapping_add(reservation, address, nbytes, handle);
}

CUresult impl_cuMemUnmap(CUdeviceptr address, size_t nbytes) {
    CUresult result = whole_mappings("U1", "U2", address, nbytes);
    if (result != OK) return result;
    if (g.settings.unmap_waits) { /* a driver that synchronises by itself; nothing can then be in flight */
        for (int device = 0; device < MAX_DEVICES; device++) work_finish_device(device);
        result = whole_mappings("U1", "U2", address, nbytes); /* the lock was dropped */
        if (result != OK) return result;
    }
    struct reservation *reservation = reservation_at(address);
    if (reservation->allocated) return REFUSE("D1", "%#llx was allocated, not mapped", address);
    bool busy = false;
    for (CUdeviceptr at = address; at < address + nbytes;) {
        struct mapping *mapping = mapping_at(at);
        at += mapping->nbytes;
        busy |= work_pending(mapping);
        mapping_remove(reservation, mapping);
    }
    /* Hardware lets it pass, and the work then reads or writes what is not there any more. */
    if (busy) broke("U3", "[%#llx, +%zu) was unmapped with work in flight", address, nbytes);
    return OK;
}

/* Without peer links a device has access to its own memory only. */
static bool linked(const struct mapping *mapping, const CUaccess *access, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!g.settings.peers && access[i].flags != ACCESS_NONE &&
            access[i].location.id != mapping->handle->physical->device)
            return false;
    return true;
}

static CUresult check_access(const CUaccess *access, size_t count) {
    if (access == NULL || count == 0) return REFUSE("A2", "no access descriptor");
    for (size_t i = 0; i < count; i++) {
        const CUaccess *a = &access[i];
        if (a->location.type != LOCATION_DEVICE || !valid_device(a->location.id))
            return REFUSE("A2", "location type %d, id %d is not simulated", a->location.type, a->location.id);
        if (a->flags != ACCESS_NONE && a->flags != ACCESS_READ && a->flags != ACCESS_READWRITE)
            return REFUSE("A2", "access flags %d", a->flags);
    }
    return OK;
}

static bool any_access(const struct mapping *mapping) {
    for (int device = 0; device < MAX_DEVICES; device++)
        if (mapping->access[device] != ACCESS_NONE) return true;
    return false;
}

CUresult impl_cuMemSetAccess(CUdeviceptr address, size_t nbytes, const CUaccess *access, size_t count) {
    CUresult result = check_access(access, count);
    if (result == OK) result = whole_mappings("A2", "A2", address, nbytes);
    if (result != OK) return result;
    unsigned long long more = 0;
    for (CUdeviceptr at = address; at < address + nbytes; at += mapping_at(at)->nbytes)
    {
        if (!linked(mapping_at(at), access, count)) return INVALID_DEVICE;
        more += !mapping_at(at)->described;
    }
    if (more > 0 && more > g.settings.max_mappings - g.described) return OUT_OF_MEMORY;
    for (CUdeviceptr at = address; at < address + nbytes; at += mapping_at(at)->nbytes) {
        struct mapping *mapping = mapping_at(at);
        for (size_t i = 0; i < count; i++)
            mapping->access[access[i].location.id] = (unsigned char)access[i].flags;
        g.described -= mapping->described;
        mapping->described = any_access(mapping);
        g.described += mapping->described;
    }
    return OK;
}

CUresult impl_cuMemGetAccess(unsigned long long *flags, const CUlocation *location, CUdeviceptr address) {
    const struct mapping *mapping = mapping_at(address);
    if (flags == NULL || location == NULL) return INVALID_VALUE;
    if (location->type != LOCATION_DEVICE || !valid_device(location->id)) return INVALID_VALUE;
    if (mapping == NULL) return REFUSE("A2", "nothing is mapped at %#llx", address);
    *flags = mapping->access[location->id];
    return OK;
}
