/* A table model and a speculative sampler, certified over stdin and stdout.
 *
 *     parity-certify law --out law.json
 *     cc -O2 -o engine engine.c -lm
 *     parity-certify command --law law.json -- ./engine law.json
 *     parity-certify command --law law.json -- ./engine law.json {temperature} {top_k}
 *
 * -DFAULT plants a fault: after a rejection the token is drawn from the target, not from the residual.
 * -DFAULT_Q plants one that no test at temperature 1 finds: drafts are judged by their law before temperature and top-k.
 */
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { K = 2, MOST_VOCAB = 16, MOST_LENGTH = 8 };

static int V, L;
static double *target, *draft, *recorded; /* rows of V, by prefix: the empty one, those of one token, ... */

static void fail(const char *what) {
    fprintf(stderr, "engine: %s\n", what);
    exit(1);
}

/* random numbers: splitmix64, a stream for every request */
static uint64_t state;

static double uniform(void) {
    uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)((z ^ (z >> 31)) >> 11) / 9007199254740992.0;
}

static int draw(const double *weights) {
    double total = 0, u;
    int x = 0;
    for (int i = 0; i < V; i++) total += weights[i];
    u = uniform() * total;
    while (x < V - 1 && u >= weights[x]) u -= weights[x++];
    return x;
}

/* the model: the law behind the first n tokens of a sequence */
static const double *law_at(const double *table, const int *tokens, int n) {
    long first = 0, size = 1, prefix = 0;
    for (int i = 0; i < n; i++) {
        first += size;
        size *= V;
        prefix = prefix * V + tokens[i];
    }
    return table + (first + prefix) * V;
}

/* one sequence by speculative sampling: draft up to K tokens, accept or resample, and a bonus token */
static void sample(int *tokens, long *drafted, long *accepted) {
    int n = 0;
    while (n < L) {
        int k = L - n < K ? L - n : K, i;
        for (i = 0; i < k; i++) tokens[n + i] = draw(law_at(draft, tokens, n + i));
        *drafted += k;
        for (i = 0; i < k; i++, n++) {
            const double *p = law_at(target, tokens, n), *q = law_at(recorded, tokens, n);
            double rest[MOST_VOCAB];
            if (uniform() * q[tokens[n]] < p[tokens[n]]) {
                ++*accepted;
                continue;
            }
#ifdef FAULT
            memcpy(rest, p, sizeof(double) * (size_t)V);
#else
            for (int x = 0; x < V; x++) rest[x] = p[x] > q[x] ? p[x] - q[x] : 0;
#endif
            tokens[n++] = draw(rest);
            break;
        }
        if (i == k && n < L) {
            tokens[n] = draw(law_at(target, tokens, n));
            n++;
        }
    }
}

/* law.json: our own file, so a few lines read it */
static const char *behind(const char *text, const char *key) {
    const char *at = strstr(text, key);
    if (!at) fail(key);
    return at + strlen(key);
}

static double *read_table(const char *at, long rows) {
    double *table = malloc(sizeof(double) * (size_t)(rows * V));
    if (!table) fail("memory");
    for (long i = 0; i < rows * V; i++) {
        char *end;
        at = strchr(at, '"');
        if (!at) fail("law: too few probabilities");
        table[i] = strtod(at + 1, &end);
        at = end + 1;
    }
    return table;
}

/* a table under a temperature and top-k (0: all tokens) */
static double *shape(const double *table, long rows, double temperature, int top_k) {
    double *shaped = malloc(sizeof(double) * (size_t)(rows * V));
    if (!shaped) fail("memory");
    for (long r = 0; r < rows; r++) {
        const double *p = table + r * V;
        double total = 0;
        for (int x = 0; x < V; x++) {
            int likelier = 0;
            for (int y = 0; y < V; y++) likelier += p[y] > p[x];
            shaped[r * V + x] = top_k && likelier >= top_k ? 0 : pow(p[x], 1 / temperature);
            total += shaped[r * V + x];
        }
        for (int x = 0; x < V; x++) shaped[r * V + x] /= total;
    }
    return shaped;
}

static void read_law(const char *name, double temperature, int top_k) {
    FILE *file = fopen(name, "rb");
    long size, rows = 0, power = 1;
    char *text;
    if (!file) fail("no such law");
    fseek(file, 0, SEEK_END);
    size = ftell(file);
    rewind(file);
    text = calloc((size_t)size + 1, 1);
    if (!text || fread(text, 1, (size_t)size, file) != (size_t)size) fail("law: not read");
    fclose(file);
    V = atoi(behind(text, "\"vocab\":"));
    L = atoi(behind(text, "\"length\":"));
    if (V < 2 || V > MOST_VOCAB || L < 1 || L > MOST_LENGTH) fail("law: vocab up to 16, length up to 8");
    for (int i = 0; i < L; i++, power *= V) rows += power;
    target = shape(read_table(behind(text, "\"target\":"), rows), rows, temperature, top_k);
    recorded = read_table(behind(text, "\"draft\":"), rows);
    draft = shape(recorded, rows, temperature, top_k);
#ifndef FAULT_Q
    recorded = draft;
#endif
    free(text);
}

static char *read_line(void) {
    size_t size = 1 << 16, n = 0;
    char *line = malloc(size);
    int c = EOF;
    while (line && (c = getchar()) != EOF && c != '\n') {
        if (n + 2 > size) line = realloc(line, size *= 2);
        if (line) line[n++] = (char)c;
    }
    if (!line) fail("memory");
    line[n] = 0;
    if (c == EOF && !n) return NULL;
    return line;
}

int main(int argc, char **argv) {
    char *line;
    if (argc < 2 || argc > 4) fail("usage: engine law.json [temperature [top_k]]");
    read_law(argv[1], argc > 2 ? atof(argv[2]) : 1, argc > 3 ? atoi(argv[3]) : 0);
    while ((line = read_line())) {
        /* {"id": 0, "prompts": [[0], [0]], "length": 3, "seed": 17} */
        long id = atol(behind(line, "\"id\":")), prompts = -1, drafted = 0, accepted = 0;
        int tokens[MOST_LENGTH + K];
        for (const char *c = behind(line, "\"prompts\":"); *c && *c != '}' && *c != '"'; c++) prompts += *c == '[';
        state = strtoull(behind(line, "\"seed\":"), NULL, 10);
        printf("{\"id\": %ld, \"tokens\": [", id);
        for (long r = 0; r < prompts; r++) {
            sample(tokens, &drafted, &accepted);
            printf(r ? ", [" : "[");
            for (int i = 0; i < L; i++) printf(i ? ", %d" : "%d", tokens[i]);
            printf("]");
        }
        printf("], \"drafted\": %ld, \"accepted\": %ld}\n", drafted, accepted);
        fflush(stdout);
        free(line);
    }
    return 0;
}
