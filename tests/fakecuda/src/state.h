/* What the stand-in knows, and the functions its files share. Everything here is guarded by one lock. */
#ifndef FAKECUDA_STATE_H
#define FAKECUDA_STATE_H

#include <stdbool.h>
#include <sys/types.h>

#include "abi.h"

enum { MAX_DEVICES = 8, MAX_STREAMS = 64, MAX_EVENTS = 256, MAX_FAULTS = 16, MAX_ATTRIBUTES = 16, MAX_PINNED = 64, MAX_VIOLATIONS = 100, PATH_BYTES = 1024 };

enum call_id {
#define CALL(name, needs, target, parameters, arguments) CALL_##name,
#include "calls.def"
#undef CALL
    CALL_COUNT
};

/* ---- settings.c */
struct fault {
    enum call_id call;
    int device; /* NO_TARGET: whatever the device */
    unsigned long long first; /* counted from 1, from the moment the fault was set */
    bool onwards;
    CUresult code;
};
struct faults {
    int count;
    struct fault list[MAX_FAULTS];
};
struct attribute {
    int number, device, value; /* NO_TARGET: of every device */
};
struct settings {
    unsigned long long devices, memory, granularity, granularity_rec, poison, driver_version, va_limit, max_mappings, pin_limit;
    unsigned long long busy_ms, unmap_waits, release_waits, bad_copy;
    unsigned long long others, others_after, context_memory, peers, imex, outlives;
    unsigned long long granularity_of[MAX_DEVICES]; /* 0: as GRANULARITY */
    unsigned long long vmm, posix_fd, fabric, rdma, compression, multicast, host_numa, dma_buf, integrated, tcc;
    char report[PATH_BYTES];
    struct faults faults;
    int attribute_count;
    struct attribute attributes[MAX_ATTRIBUTES]; /* what cuDeviceGetAttribute answers instead */
    bool missing[CALL_COUNT];                    /* functions that are not handed out */
    unsigned long long latency_ns[CALL_COUNT];
};
#define POISON_OFF 256ull

void settings_default(struct settings *out);
unsigned long long granularity_on(int device); /* of its handles */
/* Parse NAME=VALUE lines. On a mistake: false, and the reason in *why*. */
bool settings_parse(struct settings *out, const char *lines, char *why, size_t why_bytes);
/* Read FAKECUDA_*; a mistake aborts the process with the reason. */
void settings_from_environment(struct settings *out);
bool faults_parse(struct faults *out, const char *text, char *why, size_t why_bytes);

/* ---- memory objects (vmm.c, ranges.c) */
struct physical {
    int device;
    int fd;                  /* the device's memfd, or one of its own where it may be exported */
    bool exportable, foreign; /* foreign: imported, and charged to the process that made it */
    pid_t owner;              /* of a foreign one */
    uint64_t offset, nbytes; /* in fd; offsets are never used twice */
    CUprop prop;
    unsigned users; /* handles: the one created, and those imported */
};
struct handle {
    CUhandle value;
    struct physical *physical;
    unsigned refs, mappings;
};
struct use { /* work that touches a mapping */
    int stream;
    uint64_t sequence;
};
struct mapping {
    CUdeviceptr address;
    size_t nbytes;
    struct handle *handle;
    unsigned char access[MAX_DEVICES];
    bool described; /* holds one of the limited mapping descriptors */
    int use_count, use_room;
    struct use *uses;
};
struct reservation {
    CUdeviceptr address;
    size_t nbytes;
    bool allocated; /* by cuMemAlloc or cuMemAllocAsync, which alone give it back */
    size_t live; /* mappings in it */
    struct mapping **slots; /* one per granule of the minimum granularity */
};

/* ---- work (work.c) */
struct clock {
    uint64_t sequence[MAX_STREAMS]; /* what is known to be complete, per stream */
};
struct stream {
    CUstream value; /* 0: the slot is free; the first MAX_DEVICES slots are the devices' default streams */
    int device;
    bool blocking;
    uint64_t submitted, completed;
    struct clock clock;
    uint64_t finish_ns; /* when the last submitted work ends */
};
struct event {
    CUevent value;
    int device;
    bool timed, recorded;
    struct clock clock;
    uint64_t finish_ns;
};

struct device {
    int memfd;
    uint64_t next_offset, used;
    uint64_t pooled, threshold; /* kept by the stream-ordered allocator; part of used */
    CUcontext context; /* 0: not active */
    unsigned context_refs;
};
struct pinned { /* memory of the host, registered by cuMemHostRegister */
    uintptr_t address;
    size_t nbytes;
};
struct violation {
    const char *rule, *call;
    char text[200];
};

struct state {
    struct settings settings;
    bool initialised, forked;
    CUresult sticky;
    unsigned long long epoch; /* counts resets: contexts of an older one are forgotten by every thread */
    struct device device[MAX_DEVICES];
    struct stream stream[MAX_STREAMS];
    struct event event[MAX_EVENTS];
    struct reservation *reservations; /* sorted by address */
    size_t reservation_count, reservation_room;
    struct handle **handles; /* by serial number; NULL once dead */
    size_t handle_count, handle_room;
    struct pinned pinned[MAX_PINNED];
    int pinned_count;
    uintptr_t next_opaque; /* contexts, streams, events: never the same value twice */
    unsigned long long calls[CALL_COUNT], failures[CALL_COUNT], injected;
    unsigned long long since_fault[CALL_COUNT][1 + MAX_DEVICES]; /* on any device, and on each */
    unsigned long long live_mappings, live_handles, described, reserved_bytes, peak_used, peak_mappings;
    unsigned long long violation_count;
    struct violation violation[MAX_VIOLATIONS];
};
extern struct state g;

/* ---- state.c */
void state_lock(void);
void state_unlock(void);
const char *call_name(enum call_id call);
int call_by_name(const char *name, size_t length); /* -1: no such call */
void broke(const char *rule, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Record a broken rule and return INVALID_VALUE, which is what the driver answers to most of them. */
#define REFUSE(rule, ...) (broke(rule, __VA_ARGS__), INVALID_VALUE)
uintptr_t new_opaque(void);
bool valid_device(int device);
uint64_t others_on_device(void);
uint64_t used_on(int device); /* by this process, by its context and by the others */
void call_enter(enum call_id call); /* takes as long as LATENCY says, then the lock */
CUresult call_begin(enum call_id call, int needs, int target);
CUresult call_end(enum call_id call, CUresult result);
enum { FREE, DRIVER, CONTEXT };
enum { NO_TARGET = -1 }; /* also: no device is known for these arguments */
bool call_has_target(enum call_id call);

/* ---- context.c */
CUresult current_device(int *device); /* OK, INVALID_CONTEXT or CONTEXT_IS_DESTROYED */
int here(void);                       /* the device of the current context, after CONTEXT was checked */
int current_or_none(void);
int device_of_context(CUcontext context);

/* ---- ranges.c */
struct reservation *reservation_at(CUdeviceptr address);
struct reservation *reservation_of(CUdeviceptr address, size_t nbytes); /* wholly inside one, else NULL */
struct mapping *mapping_at(CUdeviceptr address);
int device_at(CUdeviceptr address); /* of the memory that is mapped there */
CUresult reservation_add(CUdeviceptr *address, size_t nbytes, size_t alignment, CUdeviceptr hint);
void reservation_drop(struct reservation *reservation);
/* OK when [address, +nbytes) is whole mappings without a hole; else the broken rule is recorded. */
CUresult whole_mappings(const char *rule, const char *hole_rule, CUdeviceptr address, size_t nbytes);

/* ---- handles.c */
struct handle *handle_live(CUhandle value, const char *rule); /* NULL, and the rule recorded, when stale */
int device_of_prop(const CUprop *prop);
int device_of_handle(CUhandle value);
CUresult physical_new(int device, size_t nbytes, const CUprop *prop, struct physical **out);
CUresult handle_new(struct physical *physical, CUhandle *out);
void handle_settle(struct handle *handle); /* free what neither a reference nor a mapping holds */

/* ---- alloc.c */
#define FIRST_POOL ((CUpool)0x70010000)
void pool_trim(int device, uint64_t keep);
int device_of_pool(CUpool pool);

/* ---- vmm.c */
CUresult mapping_add(struct reservation *reservation, CUdeviceptr address, size_t nbytes, struct handle *handle);
void mapping_remove(struct reservation *reservation, struct mapping *mapping);

/* ---- work.c */
uint64_t now_ns(void);
void work_start(void);             /* the default streams of every device */
int stream_slot(CUstream value);   /* -1 when unknown, destroyed, or of another context */
uint64_t work_submit(int slot, bool busy);
void work_use(struct mapping *mapping, int slot, uint64_t sequence);
bool work_pending(const struct mapping *mapping);
void work_finish_slot(int slot);   /* wait for a stream; drops the lock while it sleeps */
void work_finish_device(int device);
void work_forget_context(int device);
unsigned long long work_pending_streams(void);

/* ---- report.c */
void report_at_exit(void);

#define CALL(name, needs, target, parameters, arguments) CUresult impl_##name parameters;
#include "calls.def"
#undef CALL

#endif
