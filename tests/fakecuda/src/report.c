/* What happened: the report as JSON, on request and at exit, and the calls the tests use between tests. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "state.h"

#define EXPORT __attribute__((visibility("default")))
EXPORT size_t fakecuda_report(char *out, size_t room);
EXPORT int fakecuda_reset(const char *settings, char *why, size_t why_bytes);
EXPORT int fakecuda_fail(const char *faults, char *why, size_t why_bytes);
EXPORT void fakecuda_forgive(void);

struct text {
    char *out;
    size_t room, used; /* used goes on past room, so the caller learns the size needed */
};

__attribute__((format(printf, 2, 3))) static void add(struct text *text, const char *format, ...) {
    va_list arguments;
    size_t left = text->used < text->room ? text->room - text->used : 0;
    va_start(arguments, format);
    int wrote = vsnprintf(left > 0 ? text->out + text->used : NULL, left, format, arguments);
    va_end(arguments);
    if (wrote > 0) text->used += (size_t)wrote;
}

static void add_live(struct text *text) {
    unsigned long long used = 0, refs = 0, contexts = 0, streams = 0, events = 0;
    for (int i = 0; i < MAX_DEVICES; i++) {
        used += g.device[i].used;
        contexts += g.device[i].context_refs;
    }
    for (size_t i = 0; i < g.handle_count; i++)
        if (g.handles[i] != NULL) refs += g.handles[i]->refs;
    for (int i = MAX_DEVICES; i < MAX_STREAMS; i++) streams += g.stream[i].value != 0;
    for (int i = 0; i < MAX_EVENTS; i++) events += g.event[i].value != 0;
    add(text, "\"live\": {\"reservations\": %zu, \"reserved_bytes\": %llu, \"mappings\": %llu, ", g.reservation_count,
        g.reserved_bytes, g.live_mappings);
    add(text, "\"handles\": %llu, \"handle_refs\": %llu, \"physical_bytes\": %llu, ", g.live_handles, refs, used);
    add(text, "\"context_refs\": %llu, \"streams\": %llu, \"events\": %llu, \"pinned\": %d, \"pending_streams\": %llu}, ",
        contexts, streams, events, g.pinned_count, work_pending_streams());
}

static void add_all(struct text *text) {
    const char *comma = "";
    add(text, "{\"schema\": \"fakecuda-report\", \"version\": 1, \"pid\": %d, ", (int)getpid());
    add_live(text);
    add(text, "\"devices\": [");
    for (int i = 0; i < (int)g.settings.devices; i++)
        add(text, "%s{\"total\": %llu, \"ours\": %llu, \"others\": %llu}", i > 0 ? ", " : "", g.settings.memory,
            (unsigned long long)(used_on(i) - others_on_device()), (unsigned long long)others_on_device());
    add(text, "], \"peak\": {\"physical_bytes\": %llu, \"mappings\": %llu}, ", g.peak_used, g.peak_mappings);
    add(text, "\"injected\": %llu, \"sticky\": %d, \"calls\": {", g.injected, g.sticky);
    for (int i = 0; i < CALL_COUNT; i++) {
        if (g.calls[i] == 0) continue;
        add(text, "%s\"%s\": {\"calls\": %llu, \"failures\": %llu}", comma, call_name((enum call_id)i), g.calls[i],
            g.failures[i]);
        comma = ", ";
    }
    add(text, "}, \"violation_count\": %llu, \"violations\": [", g.violation_count);
    for (unsigned long long i = 0; i < g.violation_count && i < MAX_VIOLATIONS; i++)
        add(text, "%s{\"rule\": \"%s\", \"call\": \"%s\", \"text\": \"%s\"}", i > 0 ? ", " : "", g.violation[i].rule,
            g.violation[i].call, g.violation[i].text);
    add(text, "]}\n");
}

/* Write the report; returns its size, which may exceed room (then it is cut). */
size_t fakecuda_report(char *out, size_t room) {
    struct text text = {out, room, 0};
    state_lock();
    add_all(&text);
    state_unlock();
    return text.used;
}

/* Replace the faults, counted from now. 0, or -1 and the reason. */
int fakecuda_fail(const char *faults, char *why, size_t why_bytes) {
    struct faults parsed;
    if (!faults_parse(&parsed, faults, why, why_bytes)) return -1;
    state_lock();
    g.settings.faults = parsed;
    memset(g.since_fault, 0, sizeof g.since_fault);
    state_unlock();
    return 0;
}

/* Forget the violations so far: they were provoked by the test itself. */
void fakecuda_forgive(void) {
    state_lock();
    g.violation_count = 0;
    state_unlock();
}

static void drop_everything(void) {
    while (g.reservation_count > 0) {
        struct reservation *last = &g.reservations[g.reservation_count - 1];
        for (size_t i = 0; last->live > 0; i++)
            if (last->slots[i] != NULL) mapping_remove(last, last->slots[i]);
        reservation_drop(last);
    }
    for (size_t i = 0; i < g.handle_count; i++) {
        if (g.handles[i] == NULL) continue;
        g.handles[i]->refs = 0;
        handle_settle(g.handles[i]);
    }
    for (int i = 0; i < MAX_DEVICES; i++)
        if (g.device[i].memfd > 0) close(g.device[i].memfd);
    free(g.reservations);
}

/* Start anew as a freshly loaded driver with these settings (defaults where none is given).
 *
 * Handles, contexts and streams from before stay recognisable as stale. No other thread may be inside a call. */
int fakecuda_reset(const char *settings, char *why, size_t why_bytes) {
    struct settings parsed;
    settings_default(&parsed);
    if (!settings_parse(&parsed, settings, why, why_bytes)) return -1;
    state_lock();
    drop_everything();
    g = (struct state){.settings = parsed,
                       .epoch = g.epoch + 1,
                       .handles = g.handles,
                       .handle_count = g.handle_count,
                       .handle_room = g.handle_room,
                       .next_opaque = g.next_opaque};
    work_start();
    state_unlock();
    return 0;
}

/* The path's first %p becomes the process id: a command and its workers then write a report each. */
void report_at_exit(void) {
    char path[PATH_BYTES + 16];
    const char *mark = strstr(g.settings.report, "%p");
    if (g.settings.report[0] == '\0') return;
    if (mark != NULL)
        snprintf(path, sizeof path, "%.*s%d%s", (int)(mark - g.settings.report), g.settings.report, (int)getpid(),
                 mark + 2);
    else snprintf(path, sizeof path, "%s", g.settings.report);
    size_t room = fakecuda_report(NULL, 0) + 1;
    char *text = malloc(room);
    FILE *file = fopen(path, "w");
    if (text == NULL || file == NULL) abort();
    fakecuda_report(text, room);
    fputs(text, file);
    fclose(file);
    free(text);
}
