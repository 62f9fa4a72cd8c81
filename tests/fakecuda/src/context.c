/* cuInit, device queries, and primary contexts with a stack of current ones per thread (X1). */
#include <stdio.h>
#include <string.h>

#include "state.h"

enum { STACK_DEPTH = 16 };
static _Thread_local struct {
    unsigned long long epoch;
    int depth;
    CUcontext context[STACK_DEPTH];
} stack;

static void forget_older_epochs(void) {
    if (stack.epoch != g.epoch) stack.depth = 0;
    stack.epoch = g.epoch;
}

int device_of_context(CUcontext context) {
    if (context == 0) return NO_TARGET;
    for (int device = 0; device < MAX_DEVICES; device++)
        if (g.device[device].context == context) return device;
    return NO_TARGET;
}

CUresult current_device(int *device) {
    forget_older_epochs();
    CUcontext top = stack.depth > 0 ? stack.context[stack.depth - 1] : 0;
    if (top == 0) return INVALID_CONTEXT;
    *device = device_of_context(top);
    return *device >= 0 ? OK : CONTEXT_IS_DESTROYED;
}

int current_or_none(void) {
    int device = NO_TARGET;
    return current_device(&device) == OK ? device : NO_TARGET;
}

int here(void) {
    int device = 0;
    current_device(&device);
    return device;
}

CUresult impl_cuInit(unsigned int flags) {
    if (flags != 0) return REFUSE("I1", "flags is %u, must be 0", flags);
    if (g.settings.devices == 0) return NO_DEVICE;
    g.initialised = true;
    return OK;
}

CUresult impl_cuDriverGetVersion(int *version) {
    if (version == NULL) return INVALID_VALUE;
    *version = (int)g.settings.driver_version;
    return OK;
}

CUresult impl_cuDeviceGetCount(int *count) {
    if (count == NULL) return INVALID_VALUE;
    *count = (int)g.settings.devices;
    return OK;
}

CUresult impl_cuDeviceGet(CUdevice *device, int ordinal) {
    if (device == NULL) return INVALID_VALUE;
    if (!valid_device(ordinal)) return INVALID_DEVICE;
    *device = ordinal;
    return OK;
}

CUresult impl_cuDeviceGetName(char *name, int length, CUdevice device) {
    if (name == NULL || length <= 0) return INVALID_VALUE;
    if (!valid_device(device)) return INVALID_DEVICE;
    snprintf(name, (size_t)length, "vmtool stand-in GPU %d (no hardware)", device);
    return OK;
}

CUresult impl_cuDeviceGetUuid(CUuuid *uuid, CUdevice device) {
    if (uuid == NULL) return INVALID_VALUE;
    if (!valid_device(device)) return INVALID_DEVICE;
    memcpy(uuid->bytes, "vmtool stand-in", sizeof uuid->bytes);
    uuid->bytes[15] = (unsigned char)device;
    return OK;
}

CUresult impl_cuDeviceTotalMem(size_t *nbytes, CUdevice device) {
    if (nbytes == NULL) return INVALID_VALUE;
    if (!valid_device(device)) return INVALID_DEVICE;
    *nbytes = g.settings.memory;
    return OK;
}

CUresult impl_cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    const struct settings *s = &g.settings;
    const struct {
        int attribute;
        unsigned long long value;
    } known[] = {{115, 1},             {18, s->integrated}, {33, (unsigned)device + 1}, {35, s->tcc},       {41, 1},
                 {75, 9},             {76, 0},                    {102, s->vmm},      {103, s->posix_fd},
                 {107, s->compression}, {110, s->rdma},           {124, s->dma_buf},  {128, s->fabric},
                 {132, s->multicast}, {141, s->host_numa},        {145, s->host_numa}};
    if (value == NULL || attribute < 1 || attribute > 146) return INVALID_VALUE;
    if (!valid_device(device)) return INVALID_DEVICE;
    *value = 0;
    for (int i = 0; i < s->attribute_count; i++)
        if (s->attributes[i].number == attribute &&
            (s->attributes[i].device == NO_TARGET || s->attributes[i].device == device)) {
            *value = s->attributes[i].value;
            return OK;
        }
    if (attribute == 134) *value = s->host_numa ? 0 : -1; /* HOST_NUMA_ID: -1 without NUMA */
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (known[i].attribute == attribute) *value = (int)known[i].value;
    return OK;
}

CUresult impl_cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    if (context == NULL) return INVALID_VALUE;
    if (!valid_device(device)) return INVALID_DEVICE;
    struct device *d = &g.device[device];
    if (d->context_refs == 0 && used_on(device) + g.settings.context_memory > g.settings.memory) return OUT_OF_MEMORY;
    if (d->context_refs++ == 0) d->context = new_opaque();
    *context = d->context;
    return OK;
}

CUresult impl_cuDevicePrimaryCtxRelease(CUdevice device) {
    if (!valid_device(device)) return INVALID_DEVICE;
    struct device *d = &g.device[device];
    if (d->context_refs == 0) {
        broke("X3", "the primary context of device %d was released more often than retained", device);
        return INVALID_CONTEXT;
    }
    if (d->context_refs == 1) work_finish_device(device);
    if (--d->context_refs == 0) { /* X2: what cuMemCreate made stays */
        work_forget_context(device);
        pool_trim(device, 0);
        d->context = 0;
    }
    return OK;
}

CUresult impl_cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags, int *active) {
    if (flags == NULL || active == NULL) return INVALID_VALUE;
    if (!valid_device(device)) return INVALID_DEVICE;
    *flags = 0;
    *active = g.device[device].context != 0;
    return OK;
}

static CUresult check_context(CUcontext context) {
    if (device_of_context(context) >= 0) return OK;
    broke("X1", "context %#lx is not alive", (unsigned long)context);
    return INVALID_CONTEXT;
}

CUresult impl_cuCtxSetCurrent(CUcontext context) {
    forget_older_epochs();
    if (context != 0) {
        CUresult result = check_context(context);
        if (result != OK) return result;
    }
    if (stack.depth > 0) stack.depth--;
    if (context != 0) stack.context[stack.depth++] = context;
    return OK;
}

CUresult impl_cuCtxGetCurrent(CUcontext *context) {
    if (context == NULL) return INVALID_VALUE;
    forget_older_epochs();
    *context = stack.depth > 0 ? stack.context[stack.depth - 1] : 0;
    return OK;
}

CUresult impl_cuCtxPushCurrent(CUcontext context) {
    forget_older_epochs();
    CUresult result = context != 0 ? check_context(context) : INVALID_CONTEXT;
    if (result != OK) return result;
    if (stack.depth == STACK_DEPTH) return REFUSE("X1", "%d contexts pushed and not popped", STACK_DEPTH);
    stack.context[stack.depth++] = context;
    return OK;
}

CUresult impl_cuCtxPopCurrent(CUcontext *context) {
    forget_older_epochs();
    if (stack.depth == 0) return INVALID_CONTEXT;
    stack.depth--;
    if (context != NULL) *context = stack.context[stack.depth];
    return OK;
}

CUresult impl_cuCtxGetDevice(CUdevice *device) {
    if (device == NULL) return INVALID_VALUE;
    *device = here();
    return OK;
}

CUresult impl_cuCtxSynchronize(void) {
    work_finish_device(here());
    pool_trim(here(), g.device[here()].threshold);
    return OK;
}

CUresult impl_cuMemGetInfo(size_t *available, size_t *total) {
    if (available == NULL || total == NULL) return INVALID_VALUE;
    *total = g.settings.memory;
    uint64_t used = used_on(here());
    *available = used < g.settings.memory ? g.settings.memory - used : 0;
    return OK;
}
