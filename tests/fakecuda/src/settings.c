/* Settings: what the tests can ask of the stand-in. The list is in README.md beside this folder.
 *
 * They come from FAKECUDA_<NAME> in the environment, or as NAME=VALUE lines from fakecuda_reset(). A name or a
 * value that is not understood is an error: a test whose setting was ignored would pass for the wrong reason. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "state.h"

extern char **environ;

struct number {
    const char *name;
    size_t field;
    unsigned long long low, high, otherwise;
};
#define NUMBER(name, field, low, high, otherwise) {name, offsetof(struct settings, field), low, high, otherwise}
#define MIB (1ull << 20)
#define TIB (1ull << 40)

static const struct number numbers[] = {
    NUMBER("DEVICES", devices, 0, MAX_DEVICES, 1),
    NUMBER("MEMORY", memory, 0, 1024 * TIB, 1024 * MIB),
    NUMBER("GRANULARITY", granularity, 4096, 1024 * MIB, 2 * MIB),
    NUMBER("GRANULARITY_REC", granularity_rec, 0, 1024 * MIB, 0),
    NUMBER("POISON", poison, 0, POISON_OFF, POISON_OFF),
    NUMBER("DRIVER_VERSION", driver_version, 1000, 99990, 13000),
    NUMBER("VA_LIMIT", va_limit, 0, 128 * TIB, 128 * TIB),
    NUMBER("MAX_MAPPINGS", max_mappings, 0, ULLONG_MAX, ULLONG_MAX),
    NUMBER("PIN_LIMIT", pin_limit, 0, ULLONG_MAX, ULLONG_MAX),
    NUMBER("BUSY_MS", busy_ms, 0, 60000, 0),
    NUMBER("UNMAP_WAITS", unmap_waits, 0, 1, 0),
    NUMBER("RELEASE_WAITS", release_waits, 0, 1, 0),
    NUMBER("OTHERS", others, 0, 1024 * TIB, 0),
    NUMBER("OTHERS_AFTER", others_after, 0, ULLONG_MAX, 0),
    NUMBER("PEERS", peers, 0, 1, 1),
    NUMBER("IMEX", imex, 0, 1, 0),
    NUMBER("OUTLIVES", outlives, 0, 1, 1),
    NUMBER("CONTEXT_MEMORY", context_memory, 0, 1024 * TIB, 0),
    NUMBER("BAD_COPY", bad_copy, INVALID_VALUE, ILLEGAL_ADDRESS, INVALID_VALUE),
    NUMBER("VMM", vmm, 0, 1, 1),
    NUMBER("POSIX_FD", posix_fd, 0, 1, 1),
    NUMBER("FABRIC", fabric, 0, 1, 0),
    NUMBER("RDMA", rdma, 0, 1, 0),
    NUMBER("COMPRESSION", compression, 0, 1, 0),
    NUMBER("MULTICAST", multicast, 0, 1, 0),
    NUMBER("HOST_NUMA", host_numa, 0, 1, 0),
    NUMBER("DMA_BUF", dma_buf, 0, 1, 0),
    NUMBER("INTEGRATED", integrated, 0, 1, 0),
    NUMBER("TCC", tcc, 0, 1, 0),
};
enum { NUMBER_COUNT = sizeof numbers / sizeof numbers[0] };

static unsigned long long *field_of(struct settings *settings, const struct number *number) {
    return (unsigned long long *)(void *)((char *)settings + number->field);
}

/* A whole number, decimal or 0x, with an optional KiB, MiB, GiB or TiB. */
static bool parse_number(const char *text, size_t length, unsigned long long *out) {
    static const char *const units[] = {"", "KiB", "MiB", "GiB", "TiB"};
    char copy[40];
    char *end = NULL;
    if (length == 0 || length >= sizeof copy || text[0] < '0' || text[0] > '9') return false;
    memcpy(copy, text, length);
    copy[length] = '\0';
    unsigned long long value = strtoull(copy, &end, 0);
    for (unsigned power = 0; power < sizeof units / sizeof units[0]; power++) {
        if (strcmp(end, units[power]) != 0) continue;
        *out = value << (10 * power);
        return *out >> (10 * power) == value;
    }
    return false;
}

/* One fault: CALL:N, CALL:N+, CALL@DEVICE:N, each with or without =CODE. */
static bool parse_fault(struct fault *out, const char *text, size_t length) {
    const char *end = text + length;
    const char *colon = memchr(text, ':', length);
    if (colon == NULL) return false;
    const char *at = memchr(text, '@', (size_t)(colon - text));
    unsigned long long device = 0;
    int call = call_by_name(text, (size_t)((at != NULL ? at : colon) - text));
    const char *count = colon + 1;
    const char *equals = memchr(count, '=', (size_t)(end - count));
    const char *count_end = equals != NULL ? equals : end;
    unsigned long long code = OUT_OF_MEMORY;
    bool onwards = count_end > count && count_end[-1] == '+';
    if (call < 0 || !parse_number(count, (size_t)(count_end - count) - onwards, &out->first)) return false;
    if (equals != NULL && !parse_number(equals + 1, (size_t)(end - equals) - 1, &code)) return false;
    if (at != NULL && (!parse_number(at + 1, (size_t)(colon - at) - 1, &device) || device >= MAX_DEVICES ||
                       !call_has_target((enum call_id)call)))
        return false;
    out->device = at != NULL ? (int)device : NO_TARGET;
    out->call = (enum call_id)call;
    out->onwards = onwards;
    out->code = (CUresult)code;
    return out->first > 0 && code > 0 && code <= INT_MAX;
}

bool faults_parse(struct faults *out, const char *text, char *why, size_t why_bytes) {
    out->count = 0;
    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        if (out->count == MAX_FAULTS || !parse_fault(&out->list[out->count], text, length)) {
            snprintf(why, why_bytes, "FAIL: '%.*s' is not CALL:N, CALL:N+, CALL@DEVICE:N or one with =CODE (at most %d)",
                     (int)length, text, MAX_FAULTS);
            return false;
        }
        out->count++;
        text += length;
        if (*text == ',') text++;
    }
    return true;
}

/* NUMBER=VALUE, NUMBER@DEVICE=VALUE,...: what attributes answer. */
static bool parse_attribute(struct settings *out, const char *text, size_t length) {
    unsigned long long number, value, device = 0;
    const char *equals = memchr(text, '=', length);
    if (equals == NULL || out->attribute_count == MAX_ATTRIBUTES) return false;
    const char *at = memchr(text, '@', (size_t)(equals - text));
    if (!parse_number(text, (size_t)((at != NULL ? at : equals) - text), &number) || number > 1000) return false;
    if (at != NULL && (!parse_number(at + 1, (size_t)(equals - at) - 1, &device) || device >= MAX_DEVICES)) return false;
    if (!parse_number(equals + 1, (size_t)(text + length - equals) - 1, &value) || value > INT_MAX) return false;
    out->attributes[out->attribute_count++] = (struct attribute){(int)number, at != NULL ? (int)device : NO_TARGET, (int)value};
    return true;
}

static bool parse_missing(struct settings *out, const char *text, size_t length) {
    int call = call_by_name(text, length);
    if (call >= 0) out->missing[call] = true;
    return call >= 0;
}

/* DEVICE:SIZE,...: the granularity of single devices. */
static bool parse_granularity(struct settings *out, const char *text, size_t length) {
    unsigned long long device;
    const char *colon = memchr(text, ':', length);
    if (colon == NULL || !parse_number(text, (size_t)(colon - text), &device) || device >= MAX_DEVICES) return false;
    return parse_number(colon + 1, (size_t)(text + length - colon) - 1, &out->granularity_of[device]);
}

/* CALL:NANOSECONDS,...: how long each call takes at least. */
static bool parse_latency(struct settings *out, const char *text, size_t length) {
    const char *colon = memchr(text, ':', length);
    int call = colon != NULL ? call_by_name(text, (size_t)(colon - text)) : -1;
    return call >= 0 && parse_number(colon + 1, (size_t)(text + length - colon) - 1, &out->latency_ns[call]);
}

static bool parse_list(struct settings *out, const char *text,
                       bool (*parse)(struct settings *out, const char *text, size_t length)) {
    while (*text != '\0') {
        size_t length = strcspn(text, ",");
        if (!parse(out, text, length)) return false;
        text += length;
        if (*text == ',') text++;
    }
    return true;
}

static bool parse_one(struct settings *out, const char *line, size_t length, char *why, size_t why_bytes) {
    const char *equals = memchr(line, '=', length);
    size_t name = equals != NULL ? (size_t)(equals - line) : length;
    const char *value = equals != NULL ? equals + 1 : line + length;
    size_t value_bytes = (size_t)(line + length - value);
    char text[PATH_BYTES];
    snprintf(why, why_bytes, "'%.*s' is not a setting with a legal value", (int)length, line);
    if (equals == NULL || value_bytes >= sizeof text) return false;
    memcpy(text, value, value_bytes);
    text[value_bytes] = '\0';
    if (name == 4 && strncmp(line, "FAIL", name) == 0) return faults_parse(&out->faults, text, why, why_bytes);
    if (name == 6 && strncmp(line, "REPORT", name) == 0) {
        memcpy(out->report, text, value_bytes + 1);
        return true;
    }
    if (name == 10 && strncmp(line, "ATTRIBUTES", name) == 0) return parse_list(out, text, parse_attribute);
    if (name == 7 && strncmp(line, "MISSING", name) == 0) return parse_list(out, text, parse_missing);
    if (name == 14 && strncmp(line, "GRANULARITY_OF", name) == 0) return parse_list(out, text, parse_granularity);
    if (name == 7 && strncmp(line, "LATENCY", name) == 0) return parse_list(out, text, parse_latency);
    for (int i = 0; i < NUMBER_COUNT; i++) {
        const struct number *number = &numbers[i];
        if (strlen(number->name) != name || strncmp(number->name, line, name) != 0) continue;
        unsigned long long *field = field_of(out, number);
        return parse_number(text, value_bytes, field) && *field >= number->low && *field <= number->high;
    }
    return false;
}

static bool power_of_two(unsigned long long value) { return value != 0 && (value & (value - 1)) == 0; }

bool settings_parse(struct settings *out, const char *lines, char *why, size_t why_bytes) {
    while (*lines != '\0') {
        size_t length = strcspn(lines, "\n");
        if (length > 0 && !parse_one(out, lines, length, why, why_bytes)) return false;
        lines += length;
        if (*lines == '\n') lines++;
    }
    if (out->granularity_rec == 0) out->granularity_rec = out->granularity;
    if (!power_of_two(out->granularity) || !power_of_two(out->granularity_rec) ||
        out->granularity_rec < out->granularity) {
        snprintf(why, why_bytes, "GRANULARITY and GRANULARITY_REC are powers of two, the second not the smaller");
        return false;
    }
    for (int device = 0; device < MAX_DEVICES; device++) {
        unsigned long long unit = out->granularity_of[device];
        if (unit != 0 && (!power_of_two(unit) || unit < out->granularity)) {
            snprintf(why, why_bytes, "GRANULARITY_OF are powers of two, none below GRANULARITY");
            return false;
        }
    }
    if (out->bad_copy != INVALID_VALUE && out->bad_copy != ILLEGAL_ADDRESS) {
        snprintf(why, why_bytes, "BAD_COPY is 1 or 700");
        return false;
    }
    return true;
}

unsigned long long granularity_on(int device) {
    unsigned long long own = valid_device(device) ? g.settings.granularity_of[device] : 0;
    return own != 0 ? own : g.settings.granularity;
}

void settings_default(struct settings *out) {
    memset(out, 0, sizeof *out);
    for (int i = 0; i < NUMBER_COUNT; i++) *field_of(out, &numbers[i]) = numbers[i].otherwise;
}

void settings_from_environment(struct settings *out) {
    static const char prefix[] = "FAKECUDA_";
    char lines[8192] = "";
    char why[300];
    size_t used = 0;
    for (char **entry = environ; entry != NULL && *entry != NULL; entry++) {
        if (strncmp(*entry, prefix, sizeof prefix - 1) != 0) continue;
        int wrote = snprintf(lines + used, sizeof lines - used, "%s\n", *entry + sizeof prefix - 1);
        if (wrote < 0 || used + (size_t)wrote >= sizeof lines) {
            fputs("fakecuda: the FAKECUDA_ settings are too long\n", stderr);
            abort();
        }
        used += (size_t)wrote;
    }
    settings_default(out);
    if (!settings_parse(out, lines, why, sizeof why)) {
        fprintf(stderr, "fakecuda: FAKECUDA_%s\n", why[0] == '\'' ? why + 1 : why);
        abort();
    }
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    if (visible != NULL && (visible[0] == '\0' || strcmp(visible, "-1") == 0)) out->devices = 0;
}
