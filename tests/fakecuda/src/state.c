/* The state, its one lock, and what every call does before and after its own work. */
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

struct state g;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static _Thread_local enum call_id this_call;

static const char *const names[CALL_COUNT] = {
#define CALL(name, needs, target, parameters, arguments) #name,
#include "calls.def"
#undef CALL
};

void state_lock(void) { pthread_mutex_lock(&lock); }
void state_unlock(void) { pthread_mutex_unlock(&lock); }

/* The lock is held across a fork, so the child never finds it taken by a thread that it does not have. */
static void in_child(void) {
    if (g.initialised) g.forked = true;
    state_unlock();
}

__attribute__((constructor)) static void load(void) {
    settings_from_environment(&g.settings);
    g.epoch = 1;
    work_start();
    pthread_atfork(state_lock, state_unlock, in_child);
}

__attribute__((destructor)) static void unload(void) {
    if (!g.forked) report_at_exit();
}

const char *call_name(enum call_id call) { return names[call]; }

bool call_has_target(enum call_id call) {
    static const char *const targets[CALL_COUNT] = {
#define CALL(name, needs, target, parameters, arguments) #target,
#include "calls.def"
#undef CALL
    };
    return strcmp(targets[call], "NO_TARGET") != 0;
}

int call_by_name(const char *name, size_t length) {
    for (int i = 0; i < CALL_COUNT; i++)
        if (strlen(names[i]) == length && strncmp(names[i], name, length) == 0) return i;
    return -1;
}

void broke(const char *rule, const char *format, ...) {
    if (g.violation_count++ >= MAX_VIOLATIONS) return;
    struct violation *violation = &g.violation[g.violation_count - 1];
    va_list arguments;
    violation->rule = rule;
    violation->call = names[this_call];
    va_start(arguments, format);
    vsnprintf(violation->text, sizeof violation->text, format, arguments);
    va_end(arguments);
}

uintptr_t new_opaque(void) {
    g.next_opaque += 16;
    return (uintptr_t)0x7fc000000000 + g.next_opaque;
}

uint64_t others_on_device(void) {
    return g.calls[CALL_cuMemCreate] >= g.settings.others_after ? g.settings.others : 0;
}

/* Assumed: a context takes CONTEXT_MEMORY once per process, and gives it back. */
uint64_t used_on(int device) {
    const struct device *d = &g.device[device];
    return d->used + (d->context != 0 ? g.settings.context_memory : 0) + others_on_device();
}

bool valid_device(int device) { return device >= 0 && (unsigned long long)device < g.settings.devices; }

/* The codes of which cuda.h says that the process must be ended (710: the context). Assumed: after an uncorrectable
 * error of memory (214) or NVLink (220) nothing works either; cuda.h says nothing of that. */
static bool is_sticky(CUresult code) {
    return code == 226 || code == ILLEGAL_ADDRESS || code == 702 || code == 710 || (code >= 714 && code <= 719) ||
           code == 721 || code == 810 || code == 911 || code == 214 || code == 220;
}

static CUresult injected(enum call_id call, int target) {
    unsigned long long *counts = g.since_fault[call];
    counts[0]++;
    if (valid_device(target)) counts[1 + target]++;
    for (int i = 0; i < g.settings.faults.count; i++) {
        const struct fault *fault = &g.settings.faults.list[i];
        if (fault->call != call || (fault->device != NO_TARGET && fault->device != target)) continue;
        unsigned long long number = counts[1 + fault->device];
        if (number == fault->first || (fault->onwards && number > fault->first)) {
            g.injected++;
            return fault->code;
        }
    }
    return OK;
}

void call_enter(enum call_id call) {
    uint64_t until = g.settings.latency_ns[call] > 0 ? now_ns() + g.settings.latency_ns[call] : 0;
    while (until > 0 && now_ns() < until) continue;
    state_lock();
    this_call = call;
}

CUresult call_begin(enum call_id call, int needs, int target) {
    int device;
    g.calls[call]++;
    if (g.forked) return NOT_INITIALIZED; /* F1 */
    CUresult result = injected(call, target);
    if (result != OK) return result;
    if (needs == FREE) return OK;
    if (!g.initialised) return NOT_INITIALIZED;
    if (g.sticky != OK) return g.sticky; /* E1 */
    return needs == CONTEXT ? current_device(&device) : OK;
}

CUresult call_end(enum call_id call, CUresult result) {
    if (result != OK && result != NOT_READY) g.failures[call]++;
    if (g.sticky == OK && is_sticky(result)) g.sticky = result;
    state_unlock();
    return result;
}
