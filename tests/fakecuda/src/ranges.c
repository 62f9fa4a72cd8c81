/* Address ranges: reservations sorted by address, and in each the mapping behind every granule.
 *
 * A reservation is PROT_NONE host address space, so no host allocation can share a device address and a host
 * access to one faults. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "state.h"

#define TWO_MIB (2ull << 20)

/* The index of the first reservation above address. */
static size_t above(CUdeviceptr address) {
    size_t low = 0, high = g.reservation_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (g.reservations[middle].address <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

struct reservation *reservation_at(CUdeviceptr address) {
    size_t index = above(address);
    if (index == 0) return NULL;
    struct reservation *found = &g.reservations[index - 1];
    return address - found->address < found->nbytes ? found : NULL;
}

struct reservation *reservation_of(CUdeviceptr address, size_t nbytes) {
    struct reservation *found = reservation_at(address);
    if (found == NULL) return NULL;
    size_t after = found->nbytes - (size_t)(address - found->address);
    return nbytes <= after ? found : NULL;
}

struct mapping *mapping_at(CUdeviceptr address) {
    struct reservation *found = reservation_at(address);
    return found != NULL ? found->slots[(address - found->address) / g.settings.granularity] : NULL;
}

int device_at(CUdeviceptr address) {
    const struct mapping *mapping = mapping_at(address);
    return mapping != NULL ? mapping->handle->physical->device : NO_TARGET;
}

static void *map_none(void *hint, size_t nbytes, int extra) {
    void *at = mmap(hint, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | extra, -1, 0);
    return at == MAP_FAILED ? NULL : at;
}

/* PROT_NONE space of nbytes at a multiple of alignment; at the hint when it is free (R2). */
static CUdeviceptr host_range(size_t nbytes, size_t alignment, CUdeviceptr hint) {
    if (hint != 0) {
        void *at = map_none((void *)(uintptr_t)hint, nbytes, MAP_FIXED_NOREPLACE);
        if (at == (void *)(uintptr_t)hint) return hint;
        if (at != NULL) munmap(at, nbytes); /* a kernel before 4.17 takes the flag for a hint */
    }
    if (nbytes > SIZE_MAX - alignment) return 0;
    char *raw = map_none(NULL, nbytes + alignment, 0);
    if (raw == NULL) return 0;
    size_t before = (size_t)(-(uintptr_t)raw & (alignment - 1));
    if (before > 0) munmap(raw, before);
    if (alignment > before) munmap(raw + before + nbytes, alignment - before);
    return (CUdeviceptr)(uintptr_t)(raw + before);
}

static bool room_for_one_more(void) {
    if (g.reservation_count < g.reservation_room) return true;
    size_t room = g.reservation_room == 0 ? 16 : 2 * g.reservation_room;
    struct reservation *larger = realloc(g.reservations, room * sizeof *larger);
    if (larger == NULL) return false;
    g.reservations = larger;
    g.reservation_room = room;
    return true;
}

static size_t slots_bytes(size_t nbytes) { return nbytes / g.settings.granularity * sizeof(struct mapping *); }

CUresult reservation_add(CUdeviceptr *address, size_t nbytes, size_t alignment, CUdeviceptr hint) {
    if (alignment < TWO_MIB) alignment = TWO_MIB;
    if (!room_for_one_more()) return OUT_OF_MEMORY;
    CUdeviceptr at = host_range(nbytes, alignment, hint);
    if (at == 0) return OUT_OF_MEMORY;
    /* As large as the range / granularity, but only touched where something is mapped. */
    void *slots = mmap(NULL, slots_bytes(nbytes), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (slots == MAP_FAILED) {
        munmap((void *)(uintptr_t)at, nbytes);
        return OUT_OF_MEMORY;
    }
    size_t index = above(at);
    memmove(&g.reservations[index + 1], &g.reservations[index],
            (g.reservation_count - index) * sizeof *g.reservations);
    g.reservations[index] = (struct reservation){.address = at, .nbytes = nbytes, .slots = slots};
    g.reservation_count++;
    g.reserved_bytes += nbytes;
    *address = at;
    return OK;
}

void reservation_drop(struct reservation *reservation) {
    size_t index = (size_t)(reservation - g.reservations);
    munmap((void *)(uintptr_t)reservation->address, reservation->nbytes);
    munmap(reservation->slots, slots_bytes(reservation->nbytes));
    g.reserved_bytes -= reservation->nbytes;
    g.reservation_count--;
    memmove(reservation, reservation + 1, (g.reservation_count - index) * sizeof *reservation);
}

CUresult whole_mappings(const char *rule, const char *hole_rule, CUdeviceptr address, size_t nbytes) {
    struct reservation *reservation = reservation_of(address, nbytes);
    if (nbytes == 0 || reservation == NULL)
        return REFUSE(rule, "[%#llx, +%zu) is not inside one reservation", address, nbytes);
    for (CUdeviceptr at = address; at < address + nbytes;) {
        const struct mapping *mapping = mapping_at(at);
        if (mapping == NULL) return REFUSE(hole_rule, "[%#llx, +%zu) has a hole at %#llx", address, nbytes, at);
        if (mapping->address != at || mapping->nbytes > address + nbytes - at)
            return REFUSE(rule, "[%#llx, +%zu) cuts the mapping [%#llx, +%zu)", address, nbytes, mapping->address,
                          mapping->nbytes);
        at += mapping->nbytes;
    }
    return OK;
}
