/* Streams, events and work in flight (U3, S1).
 *
 * Memory changes when work is submitted, but the work stays in flight until the host has synchronised with it:
 * time alone completes nothing. What a synchronisation proves is tracked with vector clocks: each stream knows,
 * per stream, the last work that must be complete once its own tail is. With BUSY_MS each fill also lasts that
 * long on its stream's own timeline, and synchronising sleeps until then. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "state.h"

uint64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

static void join(struct clock *into, const struct clock *from) {
    for (int i = 0; i < MAX_STREAMS; i++)
        if (into->sequence[i] < from->sequence[i]) into->sequence[i] = from->sequence[i];
}

static void later(uint64_t *time, uint64_t other) {
    if (*time < other) *time = other;
}

void work_start(void) {
    memset(g.stream, 0, sizeof g.stream);
    memset(g.event, 0, sizeof g.event);
    for (int device = 0; device < MAX_DEVICES; device++)
        g.stream[device] = (struct stream){.value = (CUstream)device + 1, .device = device, .blocking = true};
}

/* 0, 1 and 2 are the default stream by its three names; per-thread default streams are not told apart. */
int stream_slot(CUstream value) {
    if (value <= 2) return here();
    for (int i = MAX_DEVICES; i < MAX_STREAMS; i++)
        if (g.stream[i].value == value && g.stream[i].device == here()) return i;
    broke("S3", "%#lx is not a stream of the current context", (unsigned long)value);
    return -1;
}

static void follow(struct stream *stream, const struct stream *other) {
    join(&stream->clock, &other->clock);
    later(&stream->finish_ns, other->finish_ns);
}

/* The default stream and blocking streams of its device wait for each other. */
static void follow_default_rules(int slot) {
    struct stream *stream = &g.stream[slot];
    if (slot >= MAX_DEVICES) {
        if (stream->blocking) follow(stream, &g.stream[stream->device]);
        return;
    }
    for (int i = MAX_DEVICES; i < MAX_STREAMS; i++)
        if (g.stream[i].value != 0 && g.stream[i].blocking && g.stream[i].device == slot) follow(stream, &g.stream[i]);
}

uint64_t work_submit(int slot, bool busy) {
    struct stream *stream = &g.stream[slot];
    follow_default_rules(slot);
    later(&stream->finish_ns, now_ns());
    if (busy) stream->finish_ns += g.settings.busy_ms * 1000000u;
    stream->clock.sequence[slot] = ++stream->submitted;
    return stream->submitted;
}

void work_use(struct mapping *mapping, int slot, uint64_t sequence) {
    for (int i = 0; i < mapping->use_count; i++)
        if (mapping->uses[i].stream == slot) {
            mapping->uses[i].sequence = sequence;
            return;
        }
    if (mapping->use_count == mapping->use_room) {
        int room = mapping->use_room + 4;
        struct use *larger = realloc(mapping->uses, (size_t)room * sizeof *larger);
        if (larger == NULL) abort();
        mapping->uses = larger;
        mapping->use_room = room;
    }
    mapping->uses[mapping->use_count++] = (struct use){slot, sequence};
}

bool work_pending(const struct mapping *mapping) {
    for (int i = 0; i < mapping->use_count; i++)
        if (g.stream[mapping->uses[i].stream].completed < mapping->uses[i].sequence) return true;
    return false;
}

static void complete(const struct clock *clock) {
    for (int i = 0; i < MAX_STREAMS; i++)
        if (g.stream[i].completed < clock->sequence[i]) g.stream[i].completed = clock->sequence[i];
}

static void wait_until(uint64_t finish_ns, struct clock clock) {
    if (finish_ns > now_ns()) {
        struct timespec until = {.tv_sec = (time_t)(finish_ns / 1000000000u),
                                 .tv_nsec = (long)(finish_ns % 1000000000u)};
        state_unlock();
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL) == EINTR) continue;
        state_lock();
    }
    complete(&clock);
}

void work_finish_slot(int slot) { wait_until(g.stream[slot].finish_ns, g.stream[slot].clock); }

/* Every stream of the device, also the destroyed ones whose work goes on. */
void work_finish_device(int device) {
    struct clock clock = {0};
    uint64_t finish_ns = 0;
    for (int i = 0; i < MAX_STREAMS; i++)
        if (g.stream[i].device == device) {
            join(&clock, &g.stream[i].clock);
            later(&finish_ns, g.stream[i].finish_ns);
        }
    wait_until(finish_ns, clock);
}

/* The context is gone, and its streams and events with it. */
void work_forget_context(int device) {
    for (int i = MAX_DEVICES; i < MAX_STREAMS; i++)
        if (g.stream[i].device == device) g.stream[i].value = 0;
    for (int i = 0; i < MAX_EVENTS; i++)
        if (g.event[i].device == device) g.event[i].value = 0;
}

unsigned long long work_pending_streams(void) {
    unsigned long long pending = 0;
    for (int i = 0; i < MAX_STREAMS; i++) pending += g.stream[i].completed < g.stream[i].submitted;
    return pending;
}

CUresult impl_cuStreamCreate(CUstream *stream, unsigned int flags) {
    if (stream == NULL || flags > STREAM_NON_BLOCKING) return INVALID_VALUE;
    for (int i = MAX_DEVICES; i < MAX_STREAMS; i++) {
        struct stream *s = &g.stream[i];
        if (s->value != 0 || s->completed < s->submitted) continue; /* its old work is still in flight */
        s->value = new_opaque();
        s->device = here();
        s->blocking = flags == 0;
        s->finish_ns = 0;
        *stream = s->value;
        return OK;
    }
    return OUT_OF_MEMORY;
}

CUresult impl_cuStreamDestroy(CUstream stream) {
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    if (slot < MAX_DEVICES) return REFUSE("S3", "the default stream cannot be destroyed");
    g.stream[slot].value = 0;
    return OK;
}

CUresult impl_cuStreamSynchronize(CUstream stream) {
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    work_finish_slot(slot);
    pool_trim(here(), g.device[here()].threshold);
    return OK;
}

CUresult impl_cuStreamQuery(CUstream stream) {
    int slot = stream_slot(stream);
    if (slot < 0) return INVALID_HANDLE;
    if (g.stream[slot].finish_ns > now_ns()) return NOT_READY;
    complete(&g.stream[slot].clock);
    return OK;
}

static struct event *find_event(CUevent value) {
    for (int i = 0; value != 0 && i < MAX_EVENTS; i++)
        if (g.event[i].value == value && g.event[i].device == here()) return &g.event[i];
    broke("S3", "%#lx is not an event of the current context", (unsigned long)value);
    return NULL;
}

CUresult impl_cuStreamWaitEvent(CUstream stream, CUevent value, unsigned int flags) {
    int slot = stream_slot(stream);
    const struct event *event = find_event(value);
    if (slot < 0 || event == NULL) return INVALID_HANDLE;
    if (flags > 1) return INVALID_VALUE;
    if (!event->recorded) return OK;
    join(&g.stream[slot].clock, &event->clock);
    later(&g.stream[slot].finish_ns, event->finish_ns);
    return OK;
}

CUresult impl_cuEventCreate(CUevent *out, unsigned int flags) {
    if (out == NULL || flags > 3) return INVALID_VALUE;
    for (int i = 0; i < MAX_EVENTS; i++) {
        if (g.event[i].value != 0) continue;
        g.event[i] = (struct event){.value = new_opaque(), .device = here(), .timed = !(flags & EVENT_DISABLE_TIMING)};
        *out = g.event[i].value;
        return OK;
    }
    return OUT_OF_MEMORY;
}

CUresult impl_cuEventDestroy(CUevent value) {
    struct event *event = find_event(value);
    if (event == NULL) return INVALID_HANDLE;
    event->value = 0;
    return OK;
}

CUresult impl_cuEventRecord(CUevent value, CUstream stream) {
    struct event *event = find_event(value);
    int slot = stream_slot(stream);
    if (event == NULL || slot < 0) return INVALID_HANDLE;
    work_submit(slot, false);
    event->recorded = true;
    event->clock = g.stream[slot].clock;
    event->finish_ns = g.stream[slot].finish_ns;
    return OK;
}

CUresult impl_cuEventQuery(CUevent value) {
    const struct event *event = find_event(value);
    if (event == NULL) return INVALID_HANDLE;
    if (event->recorded && event->finish_ns > now_ns()) return NOT_READY;
    if (event->recorded) complete(&event->clock);
    return OK;
}

CUresult impl_cuEventSynchronize(CUevent value) {
    const struct event *event = find_event(value);
    if (event == NULL) return INVALID_HANDLE;
    if (event->recorded) wait_until(event->finish_ns, event->clock);
    return OK;
}

CUresult impl_cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
    const struct event *start = find_event(from), *end = find_event(to);
    if (start == NULL || end == NULL || !start->timed || !end->timed) return INVALID_HANDLE;
    if (milliseconds == NULL) return INVALID_VALUE;
    if (!start->recorded || !end->recorded) return INVALID_HANDLE;
    if (start->finish_ns > now_ns() || end->finish_ns > now_ns()) return NOT_READY;
    *milliseconds = (float)((double)end->finish_ns - (double)start->finish_ns) / 1e6f;
    return OK;
}
