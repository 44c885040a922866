/* site.c: trains a straight line as one site of a run: y = a x + b, by gradient descent on points of its own.
 *
 *   site HOST:PORT NAME     the run's model is external, or has a tensor "line" of two values
 *
 * All that Causeway needs is marked; the rest is a training program. */
#include <causeway.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

static float line[2]; /* a, b: what is trained */

/* One step of gradient descent on noisy points of y = 2 x + 1. Returns the loss. */
static double train(void) {
  double loss = 0, slope = 0, offset = 0;
  const int points = 64;
  for (int i = 0; i < points; ++i) {
    const double x = rand() / (double)RAND_MAX * 2 - 1;
    const double y = 2 * x + 1 + 0.1 * (rand() / (double)RAND_MAX - 0.5);
    const double error = line[0] * x + line[1] - y;
    loss += error * error / points;
    slope += 2 * error * x / points;
    offset += 2 * error / points;
  }
  line[0] -= (float)(0.02 * slope);
  line[1] -= (float)(0.02 * offset);
  return loss;
}

/* Causeway: what to do with a status that is not CAUSEWAY_OK; returns whether to call again. */
static int go_on(causeway_site* site, int status) {
  if (status == CAUSEWAY_AGAIN) return 1;
  if (status == CAUSEWAY_WORK) {
    causeway_work work = {.struct_size = sizeof work};
    while (causeway_site_take_work(site, &work) == CAUSEWAY_OK) {
      causeway_site_do_work(site, work.id, line + work.first);
    }
    return 1;
  }
  if (status == CAUSEWAY_OK || status == CAUSEWAY_STOP) return 0;
  causeway_error_info error = {.struct_size = sizeof error};
  causeway_error(&error);
  fprintf(stderr, "error %d: %s\n", status, error.message);
  exit(status);
}

int main(int argc, char** argv) {
  if (argc != 3) {
    fprintf(stderr, "expected: site HOST:PORT NAME, got %d arguments\n", argc - 1);
    return CAUSEWAY_BAD_INPUT;
  }
  char options[512];
  snprintf(options, sizeof options, "{\"coordinator\": \"%s\", \"site\": \"%s\"}", argv[1], argv[2]);
  causeway_run* run = NULL;
  int status = 0;
  do status = causeway_run_open(options, 100, &run);
  while (go_on(NULL, status));

  causeway_site* site = NULL;
  go_on(NULL, causeway_site_open(run, "{\"tensors\": [{\"name\": \"line\", \"shape\": [2]}]}", &site));
  int64_t step = 0;
  do status = causeway_site_join(site, 100, &step);
  while (go_on(site, status));

  const int64_t steps = 200;
  double loss = NAN;
  while (status == CAUSEWAY_OK && step < steps) {
    loss = train();
    const causeway_report report = {.struct_size = sizeof report, .tokens = 64, .loss = loss, .step_s = NAN};
    const int64_t done = step + 1;
    do status = causeway_site_after_step(site, done, &report, 100, &step);
    while (go_on(site, status));
  }
  const int finished = status == CAUSEWAY_OK;
  if (finished) {
    do status = causeway_site_complete(site, 100);
    while (go_on(site, status));
  }
  do status = causeway_site_leave(site, finished, finished ? "all steps are done" : "asked to stop", 100);
  while (go_on(site, status));
  causeway_site_close(site);
  causeway_run_close(run);
  printf("y = %.3f x + %.3f, loss %.5f\n", line[0], line[1], loss);
  return 0;
}
