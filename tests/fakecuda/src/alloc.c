/* cuMemAlloc and stream-ordered allocation: what vmtool compares virtual memory management with (D1, D2).
 *
 * An allocation is a reservation with one mapping that only these calls give back. Stream-ordered memory returns to
 * the device's pool when it is freed, and leaves the pool down to its release threshold when the device is
 * synchronised: https://docs.nvidia.com/cuda/cuda-driver-api/group__CUDA__MALLOC__ASYNC.html */
#include <string.h>

#include "state.h"

static CUresult allocate(CUdeviceptr *address, size_t nbytes, bool ordered) {
    const size_t unit = g.settings.granularity;
    const CUprop prop = {.type = PINNED, .location = {LOCATION_DEVICE, here()}};
    struct physical *physical = NULL;
    struct device *device = &g.device[here()];
    CUhandle value;
    if (address == NULL || nbytes == 0 || nbytes > SIZE_MAX - unit) return INVALID_VALUE;
    nbytes = (nbytes + unit - 1) / unit * unit;
    uint64_t reused = ordered && device->pooled >= nbytes ? nbytes : 0;
    device->pooled -= reused;
    device->used -= reused;
    CUresult result = physical_new(here(), nbytes, &prop, &physical);
    if (result != OK) return result;
    result = handle_new(physical, &value);
    if (result == OK) result = reservation_add(address, nbytes, 0, 0);
    if (result != OK) return result;
    struct handle *handle = handle_live(value, "H3");
    struct reservation *reservation = reservation_at(*address);
    result = mapping_add(reservation, *address, nbytes, handle);
    if (result != OK) return result;
    mapping_at(*address)->access[here()] = ACCESS_READWRITE;
    reservation->allocated = true;
    if (--handle->refs == 0) g.live_handles--;
    return OK;
}

static CUresult give_back(CUdeviceptr address) {
    struct reservation *reservation = reservation_at(address);
    if (reservation == NULL || !reservation->allocated || reservation->address != address)
        return REFUSE("D1", "%#llx is not an allocation", address);
    mapping_remove(reservation, mapping_at(address));
    reservation_drop(reservation);
    return OK;
}

CUresult impl_cuMemAlloc(CUdeviceptr *address, size_t nbytes) { return allocate(address, nbytes, false); }

CUresult impl_cuMemFree(CUdeviceptr address) {
    work_finish_device(here()); /* assumed: it waits for the device */
    return give_back(address);
}

CUresult impl_cuMemAllocAsync(CUdeviceptr *address, size_t nbytes, CUstream stream) {
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    CUresult result = allocate(address, nbytes, true);
    if (result == OK) work_submit(slot, false);
    return result;
}

/* D2: in the order of the stream, so work in flight on it is no breach. */
CUresult impl_cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
    int slot = stream_slot(stream);
    struct reservation *reservation = reservation_at(address);
    if (slot < 0) return INVALID_HANDLE;
    uint64_t nbytes = reservation != NULL ? reservation->nbytes : 0;
    CUresult result = give_back(address);
    if (result != OK) return result;
    g.device[here()].pooled += nbytes;
    g.device[here()].used += nbytes;
    work_submit(slot, false);
    return OK;
}

void pool_trim(int device, uint64_t keep) {
    struct device *d = &g.device[device];
    uint64_t surplus = d->pooled > keep ? d->pooled - keep : 0;
    d->pooled -= surplus;
    d->used -= surplus;
}

int device_of_pool(CUpool pool) { return (int)(pool - FIRST_POOL); }

CUresult impl_cuDeviceGetDefaultMemPool(CUpool *pool, CUdevice device) {
    if (pool == NULL) return INVALID_VALUE;
    if (!valid_device(device)) return INVALID_DEVICE;
    *pool = FIRST_POOL + (CUpool)device;
    return OK;
}

CUresult impl_cuMemPoolSetAttribute(CUpool pool, int attribute, const void *value) {
    if (value == NULL || attribute != POOL_RELEASE_THRESHOLD || !valid_device(device_of_pool(pool)))
        return INVALID_VALUE;
    memcpy(&g.device[device_of_pool(pool)].threshold, value, sizeof(uint64_t));
    return OK;
}

CUresult impl_cuMemPoolTrimTo(CUpool pool, size_t keep) {
    if (!valid_device(device_of_pool(pool))) return INVALID_VALUE;
    pool_trim(device_of_pool(pool), keep);
    return OK;
}

CUresult impl_cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    if (can == NULL) return INVALID_VALUE;
    if (!valid_device(device) || !valid_device(peer)) return INVALID_DEVICE;
    *can = device != peer && g.settings.peers != 0;
    return OK;
}
