/* Causal attention through Heddle's C interface, grouped heads, on this machine's CPU.
 *
 *   cmake -S . -B build && cmake --build build && build/attention
 *   cc attention.c -o attention $(pkg-config --cflags --libs heddle) -lm && ./attention
 *
 * A row of the result is held against the definition; the program ends with 1 if they differ. */
#include <heddle/heddle.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { BATCH = 2, HEADS = 8, KV_HEADS = 2, LENGTH = 256, DEPTH = 64 };
enum { Q = 1, K, V, O }; /* uids */

/* Ends the program with the library's sentence if a call failed. */
static void check(heddle_status status) {
  if (status == HEDDLE_OK) return;
  fprintf(stderr, "%s: %s\n", heddle_status_name(status), heddle_last_error());
  exit(1);
}

static void add_tensor(heddle_graph* graph, int64_t uid, const char* name, int64_t heads) {
  heddle_tensor tensor = {.uid = uid, .name = name, .rank = 4};
  tensor.dims[0] = BATCH, tensor.dims[1] = heads, tensor.dims[2] = LENGTH, tensor.dims[3] = DEPTH;
  check(heddle_graph_add_tensor(graph, &tensor));
}

static heddle_plan* attention_plan(void) {
  heddle_graph* graph;
  heddle_plan* plan;
  int32_t node;
  check(heddle_graph_create("attention", HEDDLE_F32, HEDDLE_F32, HEDDLE_F32, &graph));
  add_tensor(graph, Q, "q", HEADS);
  add_tensor(graph, K, "k", KV_HEADS);
  add_tensor(graph, V, "v", KV_HEADS);
  add_tensor(graph, O, "o", HEADS);
  check(heddle_graph_add_node(graph, "sdpa", "attention", &node));
  check(heddle_node_set_tensor(graph, node, "q", Q));
  check(heddle_node_set_tensor(graph, node, "k", K));
  check(heddle_node_set_tensor(graph, node, "v", V));
  check(heddle_node_set_tensor(graph, node, "o", O));
  check(heddle_node_set_number(graph, node, "attn_scale", 1 / sqrt(DEPTH)));
  check(heddle_node_set_integer(graph, node, "right_bound", 0)); /* causal */
  check(heddle_plan_create(graph, HEDDLE_CPU, &plan));
  heddle_graph_free(graph);
  return plan;
}

static float* random_values(size_t count) {
  float* values = malloc(count * sizeof *values);
  if (!values) exit(1);
  for (size_t i = 0; i < count; ++i) values[i] = 2.0f * rand() / RAND_MAX - 1;
  return values;
}

/* The largest difference between a row of o and its definition. */
static double difference(const float* q, const float* k, const float* v, const float* o) {
  const int batch = 1, head = 5, row = LENGTH - 3, group = HEADS / KV_HEADS;
  const float* query = q + ((batch * HEADS + head) * LENGTH + row) * DEPTH;
  const float* keys = k + (batch * KV_HEADS + head / group) * LENGTH * DEPTH;
  const float* values = v + (keys - k);
  double sum = 0, expected[DEPTH] = {0}, largest = 0;
  for (int j = 0; j <= row; ++j) {
    double score = 0;
    for (int d = 0; d < DEPTH; ++d) score += (double)query[d] * keys[j * DEPTH + d];
    const double weight = exp(score / sqrt(DEPTH));
    sum += weight;
    for (int d = 0; d < DEPTH; ++d) expected[d] += weight * values[j * DEPTH + d];
  }
  for (int d = 0; d < DEPTH; ++d)
    largest = fmax(largest, fabs(expected[d] / sum - o[query - q + d]));
  return largest;
}

int main(void) {
  heddle_plan* plan = attention_plan();
  printf("Heddle %s\n%s\n", heddle_version(), heddle_plan_description(plan));

  const size_t queries = (size_t)BATCH * HEADS * LENGTH * DEPTH;
  const size_t keys = queries / HEADS * KV_HEADS;
  float *q = random_values(queries), *k = random_values(keys), *v = random_values(keys);
  float* o = malloc(queries * sizeof *o);
  void* workspace = malloc(heddle_plan_workspace_bytes(plan) + 1);
  if (!o || !workspace) return 1;
  const int64_t uids[] = {Q, K, V, O};
  void* const pointers[] = {q, k, v, o};
  check(heddle_plan_execute(plan, uids, pointers, 4, NULL, 0, workspace, NULL));

  const double off = difference(q, k, v, o);
  printf("a row differs from its definition by %.1e\n", off);
  free(q), free(k), free(v), free(o), free(workspace);
  heddle_plan_free(plan);
  return off < 1e-5 ? 0 : 1;
}
