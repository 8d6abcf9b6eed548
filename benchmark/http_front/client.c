/* Many HTTP clients in one thread: each connection sends the same request, reads its streamed answer to the end, and
 * begins again. It parses nothing: an event is "data: ", an answer's end is the last chunk of a chunked body.
 *
 *     client PORT CONNECTIONS SECONDS FILE
 *
 * FILE holds the bytes of a whole request. Answers that end in the last SECONDS of 1.25 of them count. Prints one JSON
 * object: answers, events, seconds, microseconds of an answer's life and to its first event (quantiles, null if there was
 * no answer), CPU seconds.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 16, EVENTS = 64, TAIL = 5 };

static const char EVENT[] = "data: ", END[] = "0\r\n\r\n", OK[] = "HTTP/1.1 200";

typedef struct {
    int socket;
    int matched;           /* characters of EVENT that end what was read */
    int seen;              /* bytes of the answer's beginning that were compared with OK */
    char tail[TAIL];       /* the last bytes read */
    uint64_t begun, first; /* ns; first: 0 before the first event */
} connection;

static char *request;
static size_t request_bytes;
static uint64_t answers, events, bytes, counting_from;
static float *lives, *firsts;
static size_t room;

static uint64_t now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void fail(const char *what) {
    fprintf(stderr, "client: %s: %s\n", what, strerror(errno));
    exit(1);
}

static void ask(connection *c) {
    memset(c->tail, 0, TAIL);
    c->matched = c->seen = 0;
    c->first = 0;
    c->begun = now();
    if (send(c->socket, request, request_bytes, MSG_NOSIGNAL) != (ssize_t)request_bytes) fail("send");
}

static void note(connection *c, uint64_t at) {
    if (c->begun < counting_from) return;
    if (answers == room) {
        room = room ? 2 * room : 1 << 16;
        lives = realloc(lives, room * sizeof *lives);
        firsts = realloc(firsts, room * sizeof *firsts);
        if (!lives || !firsts) fail("memory");
    }
    lives[answers] = (float)(at - c->begun) / 1e3f;
    firsts[answers++] = (float)(c->first - c->begun) / 1e3f;
}

static void take(connection *c, const char *data, size_t size, uint64_t at) {
    size_t found = 0, i = 0;
    for (; c->seen < (int)sizeof OK - 1 && c->seen < (int)size; c->seen++)
        if (data[c->seen] != OK[c->seen]) {
            fwrite(data, 1, size, stderr);
            exit(1);
        }
    while (i < size) {
        if (!c->matched) {
            const char *next = memchr(data + i, EVENT[0], size - i);
            if (!next) break;
            i = (size_t)(next - data);
        }
        if (data[i] == EVENT[c->matched]) {
            i++;
            if (++c->matched == sizeof EVENT - 1) c->matched = 0, found++;
        } else
            c->matched = 0, i += data[i] != EVENT[0];
    }
    if (found && !c->first) c->first = at;
    if (at >= counting_from) events += found, bytes += size;
    if (size >= TAIL)
        memcpy(c->tail, data + size - TAIL, TAIL);
    else {
        memmove(c->tail, c->tail + size, TAIL - size);
        memcpy(c->tail + TAIL - size, data, size);
    }
    if (!memcmp(c->tail, END, TAIL)) {
        note(c, at);
        ask(c);
    }
}

static int by_size(const void *a, const void *b) {
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

static void quantiles(const char *name, float *values) {
    if (!answers) {
        printf(", \"%s\": null", name);
        return;
    }
    qsort(values, answers, sizeof *values, by_size);
    printf(", \"%s\": {\"p50\": %.0f, \"p90\": %.0f, \"p99\": %.0f}", name, values[answers / 2],
           values[answers * 9 / 10], values[answers * 99 / 100]);
}

int main(int argc, char **argv) {
    if (argc != 5) return fprintf(stderr, "client PORT CONNECTIONS SECONDS FILE\n"), 2;
    int count = atoi(argv[2]);
    double seconds = atof(argv[3]);
    FILE *file = fopen(argv[4], "rb");
    if (!file) fail(argv[4]);
    request = malloc(1 << 22);
    request_bytes = fread(request, 1, 1 << 22, file);
    fclose(file);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)atoi(argv[1]))};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connection *all = calloc((size_t)count, sizeof *all);
    char *buffer = malloc(READ_BYTES);
    int poll = epoll_create1(0), one = 1;
    for (int i = 0; i < count; i++) {
        all[i].socket = socket(AF_INET, SOCK_STREAM, 0);
        if (connect(all[i].socket, (struct sockaddr *)&address, sizeof address)) fail("connect");
        setsockopt(all[i].socket, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        fcntl(all[i].socket, F_SETFL, O_NONBLOCK);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll, EPOLL_CTL_ADD, all[i].socket, &event);
    }
    counting_from = now() + (uint64_t)(0.25e9 * seconds);
    uint64_t end = counting_from + (uint64_t)(1e9 * seconds), at;
    for (int i = 0; i < count; i++) ask(&all[i]);
    while ((at = now()) < end) {
        struct epoll_event ready[EVENTS];
        int n = epoll_wait(poll, ready, EVENTS, 100);
        for (int i = 0; i < n; i++) {
            connection *c = ready[i].data.ptr;
            ssize_t size = recv(c->socket, buffer, READ_BYTES, 0);
            if (size == 0) return fprintf(stderr, "client: the server closed a connection\n"), 1;
            if (size < 0 && errno != EAGAIN) fail("recv");
            if (size > 0) take(c, buffer, (size_t)size, now());
        }
    }
    struct rusage used;
    getrusage(RUSAGE_SELF, &used);
    printf("{\"answers\": %llu, \"events\": %llu, \"bytes\": %llu, \"seconds\": %.3f", (unsigned long long)answers,
           (unsigned long long)events, (unsigned long long)bytes, (double)(at - counting_from) / 1e9);
    quantiles("life_us", lives);
    quantiles("first_us", firsts);
    printf(", \"cpu_s\": %.3f}\n", (double)(used.ru_utime.tv_sec + used.ru_stime.tv_sec) +
                                       (double)(used.ru_utime.tv_usec + used.ru_stime.tv_usec) / 1e6);
    return 0;
}
