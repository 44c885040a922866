/* causeway.h: a training program takes part in a Causeway run as one of its sites.
 *
 *   causeway_run_open ─► causeway_site_open ─► causeway_site_join ─► (a step; causeway_site_after_step) … ─►
 *   causeway_site_complete ─► causeway_site_leave ─► causeway_site_close ─► causeway_run_close
 *
 * The library sends outer gradients to the run's coordinator and receives updates while the program computes. It
 * touches the program's parameters θ only on the program's request: it hands out work, pieces of tensors to be read or
 * moved, and the program decides when and where the work is done: by the library in the host's memory, or by the
 * program on a device.
 *
 *   status = causeway_site_after_step(site, step, &report, 100, &next);
 *   while (status == CAUSEWAY_WORK) {
 *     causeway_work work = {sizeof work};
 *     while (causeway_site_take_work(site, &work) == CAUSEWAY_OK) {
 *       causeway_site_do_work(site, work.id, theta[work.tensor] + work.first);
 *     }
 *     status = causeway_site_after_step(site, step, &report, 100, &next);
 *   }
 *
 * Waits. A function with `timeout_ms` returns CAUSEWAY_AGAIN when the time is over and CAUSEWAY_WORK when there is
 * work; nothing is lost: call it again with the same arguments, and it continues. While one such call is not
 * finished, another one is refused, except causeway_site_leave, which ends it.
 *
 * Threads. A site belongs to the thread that opened it: calls from another thread return CAUSEWAY_FAILED and do
 * nothing. Functions that say "any thread" are the exception. The library has threads of its own and calls none of the
 * program's functions.
 *
 * The host process. The library does not end it, prints nothing, sets no signal handler and changes no allocator. A
 * broken invariant inside it ends the site: its calls return CAUSEWAY_FAILED with "internal error". (Not caught: an
 * abort of gRPC itself, and a broken invariant in a destructor.) After fork() each call in the child returns
 * CAUSEWAY_FAILED with "forked after the site was opened"; the parent continues.
 *
 * ABI. Functions and fields are only added. Each struct begins with its size in bytes, which the caller fills in;
 * fields beyond it are neither read nor written. Settings travel as JSON in UTF-8; a key that is unknown is refused.
 * All strings are NUL-terminated. docs/architecture.md describes the protocol, docs/python.md the design.
 */
#ifndef CAUSEWAY_WORKER_SITE_CAUSEWAY_H_
#define CAUSEWAY_WORKER_SITE_CAUSEWAY_H_

#include <stddef.h>
#include <stdint.h>

#if defined(CAUSEWAY_BUILDS_LIBRARY)
#define CAUSEWAY_API __attribute__((visibility("default")))
#else
#define CAUSEWAY_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define CAUSEWAY_ABI 1

/* The result of a call. 1 to 5 are the exit codes of causeway-worker. */
enum causeway_status {
  CAUSEWAY_OK = 0,
  CAUSEWAY_FAILED = 1,      /* an error at run time; also a call that breaks this page's rules */
  CAUSEWAY_BAD_INPUT = 2,   /* wrong options, model, state or buffers; nothing was started */
  CAUSEWAY_REFUSED = 3,     /* refused by the coordinator */
  CAUSEWAY_NON_FINITE = 4,  /* a value of θ is not finite: `tensor` and `index` of the error say which */
  CAUSEWAY_UNREACHABLE = 5, /* no coordinator within connect_timeout_s */
  CAUSEWAY_AGAIN = 16,      /* the time is over, or the run is paused: call again */
  CAUSEWAY_WORK = 17,       /* there is work: take it, then call again */
  CAUSEWAY_STOP = 18        /* asked to stop, by causeway_site_stop or by the coordinator (drain, stop): leave */
};

enum causeway_dtype { CAUSEWAY_FLOAT32 = 0, CAUSEWAY_BFLOAT16 = 1, CAUSEWAY_FLOAT16 = 2 };

enum causeway_work_kind {
  CAUSEWAY_READ = 1,  /* values ← θ, as float32 */
  CAUSEWAY_WRITE = 2, /* θ ← values */
  CAUSEWAY_MIX = 3,   /* θ ← α θ + (1 − α) values, α = factor */
  CAUSEWAY_ADD = 4,   /* θ ← θ − η values, η = factor */
  /* Computed in float32, and rounded to nearest, ties to even, where θ has fewer bits. But the MIX of a bfloat16 is
     rounded stochastically, unless θ is `values` rounded to nearest: then θ stays. (To nearest, θ would not follow W
     by less than half the distance to its next number.) */
  CAUSEWAY_DIGEST = 5, /* the 8 bytes at `values`, a uint64_t ← the digest of the values (causeway_theta_digest) */
  CAUSEWAY_KEEP = 6    /* the library takes θ as it is from a device: causeway_site_keep */
};

enum causeway_work_flags {
  /* READ: may also be done later and on another thread, but before θ changes: before the next inner step does. */
  CAUSEWAY_BEFORE_CHANGE = 1,
  /* WRITE: a value of the anchor W, requested with causeway_site_read_anchor; it need not go to θ. */
  CAUSEWAY_ANCHOR = 2
};

typedef struct causeway_run causeway_run;
typedef struct causeway_site causeway_site;
typedef struct causeway_state causeway_state;

/* Why this thread's last call returned 1 to 5. Strings live until this thread's next call. */
typedef struct causeway_error_info {
  uint32_t struct_size;
  int32_t code;
  const char* message;  /* a sentence: what was expected, what came, where */
  const char* expected; /* "" where the message does not separate the two */
  const char* got;
  const char* tensor; /* the tensor concerned; "": none */
  int64_t index;      /* of the value in the tensor, row-major; −1: none */
} causeway_error_info;

/* A piece of a tensor, to be moved: by causeway_site_do_work where θ is in the host's memory, else by the program. */
typedef struct causeway_work {
  uint32_t struct_size;
  uint32_t kind;  /* causeway_work_kind */
  int64_t id;     /* for causeway_site_work_done */
  int32_t tensor; /* index in the model's "tensors", as the program listed them */
  uint32_t flags; /* causeway_work_flags */
  int64_t first;  /* its values [first, first + count) of the tensor, row-major */
  int64_t count;
  float* values; /* `count` values: written for READ, else read; valid until causeway_site_work_done; KEEP: not the
                    host's */
  float factor;
  const float* device_values; /* WRITE, MIX: `values` on the device of causeway_site_encode_on, too; NULL: not there */
} causeway_work;

/* The place of values of θ that lie one after the other in a process's memory: row r of them is values
 * [first + r stride, first + r stride + columns) of the tensor, row-major, as in a shard of some of its columns. */
typedef struct causeway_block {
  uint32_t struct_size;
  uint32_t reserved;
  const char* tensor; /* its name */
  int64_t first;
  int64_t rows;
  int64_t columns;
  int64_t stride;
} causeway_block;

/* The program's work since its last call of causeway_site_after_step. */
typedef struct causeway_report {
  uint32_t struct_size;
  uint32_t reserved;
  int64_t tokens; /* tokens trained on in this step */
  double loss;    /* the loss of this step, nats per token; NaN: not known */
  double step_s;  /* seconds that the step took, without waits; NaN: measured by the library between calls */
} causeway_report;

/* A named part of a state. */
typedef struct causeway_buffer {
  uint32_t struct_size;
  uint32_t reserved;
  const char* name;
  const void* data; /* aligned to 64 bytes */
  size_t bytes;
} causeway_buffer;

/* A line of the library's log. */
typedef struct causeway_log_line {
  uint32_t struct_size;
  int32_t level;   /* 0 debug, 1 info, 2 warning, 3 error */
  int64_t unix_ms; /* when the line was logged */
  int64_t dropped; /* lines that were lost before it, because they were not taken in time */
  char text[1008]; /* a longer line is cut */
} causeway_log_line;

/* ---- The library. Any thread. ---- */

/* CAUSEWAY_ABI of the library that is loaded, and its version: "0.1.0". */
CAUSEWAY_API uint32_t causeway_abi(void);
CAUSEWAY_API const char* causeway_version(void);

/* XXH3-64 of bytes: "values_digest" of a frozen tensor is this number in hexadecimal. */
CAUSEWAY_API uint64_t causeway_digest(const void* data, size_t bytes);

/* Does what causeway_site_do_work does, in a process that has no site, such as the other ranks of a site: READ,
 * WRITE, MIX or ADD of `count` values, with kind, factor and values of `work`; its other fields are ignored.
 * `theta` is where the values lie in the host's memory, in the causeway_dtype `dtype`. A tensor may be cut into any
 * ranges, over any processes: θ moves with the same bits. */
CAUSEWAY_API int causeway_move(const causeway_work* work, uint32_t dtype, void* theta);

/* *digest ← a sum modulo 2⁶⁴ over the block's values (core/digest.h), as float32: DIGEST work wants the sum of a
 * tensor's blocks, by whatever processes hold them. */
CAUSEWAY_API int causeway_theta_digest(const causeway_block* block, uint32_t dtype, const void* theta,
                                       uint64_t* digest);

/* One step of AdamW for each tensor, in place and in one pass over memory, on the threads of the
 * process's OpenMP (GNU's) where it has one loaded, else on all cores it may use: what docs/python.md's OffloadedAdamW
 * does on the host. With every fused multiply-add in one order (offload/adamw.h), so
 * that no number of threads and no cut into tensors changes a bit. Returns when it is done; calls take turns. `step`
 * counts from 1. Tensors do not overlap. After a fork the child has threads of its own. */
typedef struct causeway_adamw_tensor {
  uint32_t struct_size;
  uint32_t gradient_dtype; /* CAUSEWAY_FLOAT32 or CAUSEWAY_BFLOAT16 */
  uint32_t moment_dtype;   /* the same; bfloat16 is rounded stochastically */
  uint32_t seed;           /* seeds that rounding: a different one in each step */
  int64_t count;           /* values of each of these: */
  float* parameters;
  void* first_moment; /* zero before the first step, like the second */
  void* second_moment;
  const void* gradient;
  uint16_t* bfloat16_copy; /* gets the parameters rounded to nearest; NULL: none */
  uint8_t* followed; /* NULL, or: where the copy is not the parameters rounded, they take its value first, and this 1 */
  double gradient_scale; /* factor of the gradient: 1, or -1 to maximize */
  double lr, beta1, beta2, epsilon, weight_decay;
  int64_t step;
} causeway_adamw_tensor;
CAUSEWAY_API int causeway_adamw_step(const causeway_adamw_tensor* tensors, int count);
/* The same beside other work of the process: on threads of our own, on one core fewer than all. */
CAUSEWAY_API int causeway_adamw_step_beside(const causeway_adamw_tensor* tensors, int count);

/* The outer step of a site that trains alone, on some of its values: what a run of that site makes of them whose
 * contributions are exact (codec float32) and whose fragments wait for nothing (core/outer_step.h). W and v move in place;
 * θ ← W is the program's. Threads as causeway_adamw_step's. */
typedef struct causeway_outer_values {
  uint32_t struct_size;
  uint32_t dtype;            /* of θ: where it has fewer bits, its outer gradient counts from W rounded as θ is */
  int64_t count;             /* values of each of these: */
  const float* theta;        /* as READ gives it */
  float* anchor;             /* W */
  float* momentum;           /* v, zero before the first step */
  float lr, momentum_factor; /* η, μ */
} causeway_outer_values;
CAUSEWAY_API int causeway_outer_step(const causeway_outer_values* values);

/* Fills in `info` about this thread's last call; does not count as one. */
CAUSEWAY_API int causeway_error(causeway_error_info* info);

/* Takes the oldest line of the log. CAUSEWAY_AGAIN: there is none. The library keeps the newest 1,000. */
CAUSEWAY_API int causeway_log_take(causeway_log_line* line);

/* ---- A run ---- */

/* Asks the coordinator for a description of the run. Begins with *run = NULL; on CAUSEWAY_AGAIN *run is a run that is
 * not open yet: call again with it, or give it up with causeway_run_close. On 1 to 5 *run is NULL.
 *
 * options: {"coordinator": "HOST:PORT[,HOST:PORT…]" (several shards in their order; A|B with a standby), "site": "eu",
 *           "insecure": false, "use_proxy": false, "tls_ca": "", "tls_cert": "", "tls_key": "", "token_file": "",
 *           "connect_timeout_s": 0, "max_up_mbit": 0, "max_down_mbit": 0, "rank_timeout_s": 600}
 * All but "coordinator" and "site" may be left out; they are causeway-worker's flags. */
CAUSEWAY_API int causeway_run_open(const char* options, int timeout_ms, causeway_run** run);

/* {"run_id", "site", "config": {… run.yaml, every key with its value …}}. Lives as long as the run. Any thread. */
CAUSEWAY_API int causeway_run_json(const causeway_run* run, const char** json);

/* Closes the run. Its sites have to be closed before. NULL is allowed. */
CAUSEWAY_API int causeway_run_close(causeway_run* run);

/* ---- A site: before it joins ---- */

/* Opens the site named in the run's options; one at a time.
 *
 * model: {"tensors": [{"name": "model.embed_tokens.weight", "shape": [151936, 896], "dtype": "float32",
 *                      "kind": "embedding", "layer": -1, "alias_of": "", "frozen": false,
 *                      "values_digest": "00c0ffee00c0ffee"}, …],
 *         "data": {"tokens": 1234, "digest": "00c0ffee00c0ffee"},
 *         "files": {"config.json": "e30="}}
 *
 *   dtype            float32 (default), bfloat16 or float16 of a tensor that is synced; a frozen one may have any.
 *   kind, layer      matrix, embedding, norm, head, expert or buffer; the layer's number, −1: none. Left out, both
 *                    follow from the name and the shape, by the rules of docs/python.md.
 *   alias_of, frozen tied to another tensor, or not trained: listed, compared with the other sites', not synced.
 *   values_digest    XXH3-64 of a frozen tensor's bytes in hexadecimal; other sites must have the same.
 *   data             the site's training data, if the run is to compare it (docs/data.md); may be left out.
 *   files            what loaders need beside the weights, in base64: a run's first site that has some gives them to
 * it, for causewayctl export. At most 64 MiB in all; larger ones, code and weights are left out, and named in the log.
 *
 * In a run of model kind llama the tensors must be those of that model, in any order. CAUSEWAY_BAD_INPUT names the
 * first tensor that does not fit. Memory: about 12 bytes a synced parameter, and 12 k/P for k fragments of P in flight.
 */
CAUSEWAY_API int causeway_site_open(causeway_run* run, const char* model, causeway_site** site);

/* Resumes from a state that causeway_state_parts gave: same session, if the coordinator still holds its place. θ must
 * be the θ of that state, which causeway_site_join compares by its digest. Before joining, once. */
CAUSEWAY_API int causeway_site_restore(causeway_site* site, const causeway_buffer* parts, int count);

/* Takes part: finished when the site has its place and θ is the run's. *step is the site's current step, as if just
 * done. Work: READ (the first site of a new run, whose θ is what the run begins with), DIGEST (a restored site), WRITE.
 */
CAUSEWAY_API int causeway_site_join(causeway_site* site, int timeout_ms, int64_t* step);

/* ---- A site: between steps ---- */

/* Inner step `step` is done: sends the fragments that are due, moves θ by updates that are due, waits only for a late
 * one (stall) or while the run is paused. `report` may be NULL. *next_step is `step`, or, when the coordinator had
 * dropped the site and it has joined anew, the step to continue from. CAUSEWAY_NON_FINITE: θ has a value that is not
 * finite. */
CAUSEWAY_API int causeway_site_after_step(causeway_site* site, int64_t step, const causeway_report* report,
                                          int timeout_ms, int64_t* next_step);

/* The next piece of work; CAUSEWAY_AGAIN: there is none now. `work` begins with its size. */
CAUSEWAY_API int causeway_site_take_work(causeway_site* site, causeway_work* work);

/* Does a piece on θ in the host's memory, in place and with the bits of the native worker, and says that it is done.
 * `theta` is where value `first` of the tensor lies, in the tensor's dtype, row-major; of a piece with CAUSEWAY_ANCHOR
 * an array of float32. Any thread. */
CAUSEWAY_API int causeway_site_do_work(causeway_site* site, int64_t id, void* theta);

/* Has contributions encoded on a CUDA device that holds θ, all of it in float32, instead of READ on the host. READs
 * become KEEPs then, where the run's codecs have kernels. Before joining. CAUSEWAY_BAD_INPUT says why it is not
 * possible: the site continues with READs. `device`: as cudaSetDevice counts. */
CAUSEWAY_API int causeway_site_encode_on(causeway_site* site, int device);

/* Does a KEEP: queues a copy of the piece's values on the program's stream, a cudaStream_t (NULL: the default stream),
 * and says that it is done. `theta` is where value `first` lies in the device's memory, row-major. Changes of θ must
 * come later on that stream, or wait for it. Any thread. */
CAUSEWAY_API int causeway_site_keep(causeway_site* site, int64_t id, const void* theta, void* cuda_stream);

/* A piece that the program has carried out itself is done, or with `failed` cannot be done, which ends the site.
 * `cuda_event`: NULL, or, after causeway_site_encode_on, a cudaEvent_t after which it is done. The device waits for it
 * where the piece has device_values, else the call. Any thread. */
CAUSEWAY_API int causeway_site_work_done(causeway_site* site, int64_t id, void* cuda_event, int failed);

/* Hands out W, the anchor that all sites hold alike, as WRITE work with CAUSEWAY_ANCHOR: one version of each fragment.
 */
CAUSEWAY_API int causeway_site_read_anchor(causeway_site* site, int timeout_ms);

/* The mean loss on held-out data, nats per token, of the W that causeway_site_read_anchor gave last. */
CAUSEWAY_API int causeway_site_report_eval(causeway_site* site, double loss);

/* The state that a process needs to resume from here, beside θ and the inner optimizer: after a step, before the next.
 * Work: DIGEST. The state lives until causeway_state_close, also after the site. */
CAUSEWAY_API int causeway_site_capture(causeway_site* site, int timeout_ms, causeway_state** state);

/* With parts = NULL: *count ← the number of parts. Else fills in *count parts; they live until causeway_state_close. */
CAUSEWAY_API int causeway_state_parts(const causeway_state* state, causeway_buffer* parts, int* count);
CAUSEWAY_API int causeway_state_close(causeway_state* state);

/* ---- A site: leaving ---- */

/* After the last step: waits for the rounds that are open; θ stays as it is. */
CAUSEWAY_API int causeway_site_complete(causeway_site* site, int timeout_ms);

/* Waits for the verdicts on all contributions that were sent, so that none is lost. */
CAUSEWAY_API int causeway_site_drain(causeway_site* site, int timeout_ms);

/* Tells the coordinator that the site leaves: `finished` with all steps of the run, or not, and why; steps of its own
 * are no end of a run. Ends calls that wait.
 * Finished when the coordinator has received it, or could not be reached for a while. No call but causeway_site_close
 * follows. */
CAUSEWAY_API int causeway_site_leave(causeway_site* site, int finished, const char* reason, int timeout_ms);

/* Ends the site within half a second, whatever it waits for; without causeway_site_leave the library sends the
 * coordinator "the program ends" if it can. Work that was taken must be done: otherwise CAUSEWAY_FAILED, and the
 * site's memory and threads stay. NULL is allowed; in a forked child nothing happens. */
CAUSEWAY_API int causeway_site_close(causeway_site* site);

/* ---- A site: any thread ---- */

/* Calls that wait return CAUSEWAY_STOP from here on. Safe in a signal handler's thread, not in the handler itself. */
CAUSEWAY_API int causeway_site_stop(causeway_site* site);

/* A wait begins that is not an inner step and may take longer than rank_timeout_s, such as "evaluation"; NULL or "": it
 * is over. Otherwise a site whose program makes no call of the library for that long (ten times that long before its
 * first step) stands still: it reports this once, and then nothing, so that its lease ends and other sites' rounds
 * continue. After the next step it continues, or joins anew. */
CAUSEWAY_API int causeway_site_waits(causeway_site* site, const char* what);

/* The processes of the site, as the status page shows them, and why training stands still, where one of them knows:
 * {"ranks": 8, "hosts": 2, "slowest": "rank 3 of 8 (host)", "slowest_step_s": 0.4, "standing_still": ""}. */
CAUSEWAY_API int causeway_site_ranks(causeway_site* site, const char* json);

/* The site's reports to the coordinator, as JSON: {"step", "tokens", "loss", "tokens_per_s", "compute_s",
 * "stall_s", "slack_s", "wall_s", "contributions_sent", "contributions_merged", "contributions_skipped",
 * "residual_norm", "up_bytes_per_s", "down_bytes_per_s", "round_trip_s", "rounds", "run_steps", "run_tokens", "stays",
 * "sites", "stopping", "digests": {"0": {"version", "digest"}}, "fragments": [{"id", "slack_s", "delay"}]}, seconds
 * since it entered; run_steps as run.yaml's run.steps or causewayctl set has it, or once run.tokens are done the step
 * just taken; run_tokens of all sites, as far as this one knows; and what it exchanged since it was opened: "up_bytes",
 * "down_bytes", "codec_up", "codec_down" (of the last contribution and update), "merged_weight" (its mean weight, of 1,
 * in the updates that it took). Cut off at `size` bytes with CAUSEWAY_BAD_INPUT, whose `expected` is the size that it
 * needs. */
CAUSEWAY_API int causeway_site_progress_json(causeway_site* site, char* json, size_t size);

#ifdef __cplusplus
} /* extern "C" */
#endif

#endif /* CAUSEWAY_WORKER_SITE_CAUSEWAY_H_ */
