/* A link of a given delay and rate between two new network namespaces, in user space: for kernels without netem.
 *
 *     relay DELAY_US RATE_MBIT MTU fair|fifo ADDRESS ADDRESS
 *
 * Each namespace has one TUN device, "tun0", with one of the addresses (/24). What one device sends waits until the
 * wire is free, takes its time on it, and comes out of the other device the delay later. Nothing is lost. Connections
 * that wait for the wire take it in turns, packet by packet, as under Linux' fq and fq_codel; or first come, first
 * served, in a queue without a limit.
 *
 * Prints two paths that the namespaces can be entered by; they last as long as some process is in them, and this one
 * ends with its parent.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/if_tun.h>
#include <net/if.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#define SECOND_NS 1000000000LL
#define RETRY_NS 100000LL
#define PACKETS_A_TURN 64
#define NUM_QUEUES 64

struct packet {
    struct packet *next;
    int64_t due_ns; /* when it came, then when it comes out */
    ssize_t size;
    char bytes[];
};

/* Packets in the order in which they came. */
struct queue {
    struct packet *first, *last;
};

/* A device, and what it has sent. */
struct end {
    int tun, namespace;
    struct queue waiting[NUM_QUEUES], flying;
    int turn;        /* the queue that was served last */
    int64_t free_ns; /* when the wire will be */
};

static int checked(int result, const char *what) {
    if (result < 0) {
        perror(what);
        exit(1);
    }
    return result;
}

static int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * SECOND_NS + now.tv_nsec;
}

static int64_t earlier(int64_t one, int64_t other) { return one < other ? one : other; }

static void set_address(int sock, unsigned long request, struct ifreq device, const char *address) {
    struct sockaddr_in in = {.sin_family = AF_INET};
    if (inet_pton(AF_INET, address, &in.sin_addr) != 1) {
        fprintf(stderr, "%s is no IPv4 address\n", address);
        exit(1);
    }
    memcpy(&device.ifr_addr, &in, sizeof in);
    checked(ioctl(sock, request, &device), "set an address");
}

static void bring_up(int sock, struct ifreq device) {
    device.ifr_flags = IFF_UP | IFF_RUNNING;
    checked(ioctl(sock, SIOCSIFFLAGS, &device), "bring a device up");
}

static void make_end(struct end *end, const char *address, int mtu) {
    checked(unshare(CLONE_NEWNET), "make a network namespace");
    end->namespace = checked(open("/proc/self/ns/net", O_RDONLY), "/proc/self/ns/net");
    end->tun = checked(open("/dev/net/tun", O_RDWR | O_NONBLOCK), "/dev/net/tun");

    struct ifreq device = {.ifr_name = "tun0", .ifr_flags = IFF_TUN | IFF_NO_PI}, loopback = {.ifr_name = "lo"};
    checked(ioctl(end->tun, TUNSETIFF, &device), "make a TUN device");
    int sock = checked(socket(AF_INET, SOCK_DGRAM, 0), "socket");
    set_address(sock, SIOCSIFADDR, device, address);
    set_address(sock, SIOCSIFNETMASK, device, "255.255.255.0");
    device.ifr_mtu = mtu;
    checked(ioctl(sock, SIOCSIFMTU, &device), "set the MTU");
    device.ifr_qlen = 20000; /* the queue is this program's: the kernel's own must never drop anything */
    checked(ioctl(sock, SIOCSIFTXQLEN, &device), "set the length of the queue");
    bring_up(sock, device);
    bring_up(sock, loopback);
    close(sock);
}

static void push(struct queue *queue, struct packet *packet) {
    packet->next = NULL;
    if (queue->first)
        queue->last->next = packet;
    else
        queue->first = packet;
    queue->last = packet;
}

static struct packet *pop(struct queue *queue) {
    struct packet *packet = queue->first;
    queue->first = packet->next;
    return packet;
}

/* Tells connections apart, by the ports of TCP and UDP over IPv4 without options. */
static int queue_of(const unsigned char *ip, ssize_t size) {
    return size < 24 ? 0 : (ip[20] ^ ip[22] ^ ip[21] ^ ip[23] * 7) % NUM_QUEUES;
}

static void take_in(struct end *end, int is_fair) {
    static char bytes[1 << 16];
    ssize_t size;
    for (int n = 0; n < PACKETS_A_TURN && (size = read(end->tun, bytes, sizeof bytes)) > 0; n++) {
        struct packet *packet = malloc(sizeof *packet + size);
        if (!packet)
            exit(1);
        *packet = (struct packet){.due_ns = now_ns(), .size = size};
        memcpy(packet->bytes, bytes, size);
        push(&end->waiting[is_fair ? queue_of((unsigned char *)bytes, size) : 0], packet);
    }
}

/* Put on the wire what it has had room for by now. When it will be free, if more is waiting. */
static int64_t serve(struct end *end, int64_t delay_ns, double ns_a_byte, int64_t never_ns) {
    for (int64_t now = now_ns();;) {
        int turn = end->turn, n = 0;
        while (n < NUM_QUEUES && !end->waiting[turn = (turn + 1) % NUM_QUEUES].first)
            n++;
        if (n == NUM_QUEUES)
            return never_ns;
        if (end->free_ns > now)
            return end->free_ns;
        struct packet *packet = pop(&end->waiting[end->turn = turn]);
        int64_t begin = end->free_ns > packet->due_ns ? end->free_ns : packet->due_ns;
        end->free_ns = begin + (int64_t)(packet->size * ns_a_byte);
        packet->due_ns = end->free_ns + delay_ns;
        push(&end->flying, packet);
    }
}

/* When the next packet is due, if any is flying. */
static int64_t give_out(struct end *from, struct end *to, int64_t never_ns) {
    while (from->flying.first && from->flying.first->due_ns <= now_ns()) {
        struct packet *packet = from->flying.first;
        if (write(to->tun, packet->bytes, packet->size) < 0 && errno == EAGAIN)
            return now_ns() + RETRY_NS;
        free(pop(&from->flying));
    }
    return from->flying.first ? from->flying.first->due_ns : never_ns;
}

int main(int argc, char **argv) {
    if (argc != 7 || (strcmp(argv[4], "fair") && strcmp(argv[4], "fifo"))) {
        fprintf(stderr, "usage: relay DELAY_US RATE_MBIT MTU fair|fifo ADDRESS ADDRESS\n");
        return 1;
    }
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    prctl(PR_SET_TIMERSLACK, 1000);
    setpriority(PRIO_PROCESS, 0, -20); /* a wire doesn't wait for a core */
    int64_t delay_ns = (int64_t)(atof(argv[1]) * 1e3);
    double ns_a_byte = 8e3 / atof(argv[2]);
    int is_fair = !strcmp(argv[4], "fair");
    struct end ends[2] = {0};
    for (int n = 0; n < 2; n++)
        make_end(&ends[n], argv[5 + n], atoi(argv[3]));
    printf("/proc/%d/fd/%d /proc/%d/fd/%d\n", getpid(), ends[0].namespace, getpid(), ends[1].namespace);
    fflush(stdout);

    for (;;) {
        int64_t wake = now_ns() + SECOND_NS;
        for (int n = 0; n < 2; n++) {
            take_in(&ends[n], is_fair);
            wake = earlier(wake, serve(&ends[n], delay_ns, ns_a_byte, wake));
            wake = earlier(wake, give_out(&ends[n], &ends[1 - n], wake));
        }
        int64_t wait = wake - now_ns();
        wait = wait < 0 ? 0 : wait;
        struct timespec timeout = {.tv_sec = wait / SECOND_NS, .tv_nsec = wait % SECOND_NS};
        struct pollfd polled[2] = {{.fd = ends[0].tun, .events = POLLIN}, {.fd = ends[1].tun, .events = POLLIN}};
        ppoll(polled, 2, &timeout, NULL);
    }
}
