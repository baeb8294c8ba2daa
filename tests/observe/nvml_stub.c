/* An NVML of two GPUs for tests: the first one busy, with GPM; the second one idle, and poorer. */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { OK = 0, NOT_SUPPORTED = 3, TOO_SMALL = 7 };

static int number(void *device) { return (int)(intptr_t)device - 1; }

int nvmlInitWithFlags(unsigned flags) { (void)flags; return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int code) { return code == NOT_SUPPORTED ? "Not Supported" : "Error"; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
  *device = (void *)(intptr_t)(index + 1);
  return OK;
}

int nvmlDeviceGetUUID(void *device, char *text, unsigned room) {
  snprintf(text, room, "GPU-%d", number(device));
  return OK;
}

int nvmlDeviceGetUtilizationRates(void *device, unsigned found[2]) {
  found[0] = number(device) ? 0 : 80;
  found[1] = number(device) ? 0 : 25;
  return OK;
}

int nvmlDeviceGetMemoryInfo(void *device, unsigned long long found[3]) {
  found[0] = 1000; /* total, free, used */
  found[1] = number(device) ? 1000 : 400;
  found[2] = 1000 - found[1];
  return OK;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
  *milliwatts = 250000;
  return number(device) ? NOT_SUPPORTED : OK;
}

int nvmlDeviceGetCurrentClocksEventReasons(void *device, unsigned long long *bits) {
  *bits = number(device) ? 0x01 : 0x04 | 0x40;
  return OK;
}

typedef struct { unsigned pid; unsigned long long bytes; unsigned gpu, compute; } Process;

int nvmlDeviceGetComputeRunningProcesses_v3(void *device, unsigned *count, Process *found) {
  unsigned room = *count;
  *count = number(device) ? 0 : 3;
  if (room < *count) return TOO_SMALL;
  if (*count) {
    found[0] = (Process){11, 500, 0, 0};
    found[1] = (Process){12, 100, 0, 0};
    found[2] = (Process){13, ~0ull, 0, 0}; /* unknown */
  }
  return OK;
}

typedef struct { unsigned version, supported; } Support;
typedef struct { unsigned id; int code; double value; const char *names[3]; } Metric;
typedef struct { unsigned version, count; void *before, *after; Metric metrics[]; } Asked;

int nvmlGpmQueryDeviceSupport(void *device, Support *found) {
  found->supported = number(device) == 0;
  return OK;
}

int nvmlGpmSampleAlloc(void **sample) { *sample = calloc(1, 8); return *sample ? OK : 999; }
int nvmlGpmSampleFree(void *sample) { free(sample); return OK; }
int nvmlGpmSampleGet(void *device, void *sample) { (void)device; (void)sample; return OK; }

int nvmlGpmMetricsGet(Asked *asked) {
  for (unsigned i = 0; i < asked->count; i++) {
    Metric *one = &asked->metrics[i];
    one->code = one->id >= 60 ? NOT_SUPPORTED : OK; /* no NVLink */
    one->value = one->id == 2 ? 40.0 : one->id == 5 ? 12.5 : one->id == 20 ? 3.0 : 0.0;
  }
  return asked->before && asked->after ? OK : 2;
}
