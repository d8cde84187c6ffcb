/* What passing bytes costs: a TCP relay that looks at nothing, one thread, one epoll. No TLS of its own, no HTTP, no limits, no errors.
 *
 *     cc -O2 -o target/relay bench/peers/relay.c
 *     ../shared/peers.py --cases single --self "target/relay {port} {bport}"
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static int other[65536];
static char bytes[128 * 1024];

static struct sockaddr_in local(const char *port) {
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(atoi(port)), .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    return address;
}

static void watch(int epoll, int fd, unsigned events) {
    struct epoll_event event = {.events = events, .data.fd = fd};
    int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event);
}

int main(int count, char **arguments) {
    if (count != 3) return 2;
    struct sockaddr_in front = local(arguments[1]), back = local(arguments[2]);
    int listener = socket(AF_INET, SOCK_STREAM, 0), epoll = epoll_create1(0);
    if (bind(listener, (struct sockaddr *)&front, sizeof front) || listen(listener, 64)) return 1;
    watch(epoll, listener, EPOLLIN);
    for (;;) {
        struct epoll_event events[64];
        int ready = epoll_wait(epoll, events, 64, -1);
        for (int at = 0; at < ready; at++) {
            int fd = events[at].data.fd;
            if (fd == listener) {
                int client = accept(listener, 0, 0), server = socket(AF_INET, SOCK_STREAM, 0);
                if (connect(server, (struct sockaddr *)&back, sizeof back)) return 1;
                other[client] = server, other[server] = client;
                watch(epoll, client, EPOLLIN), watch(epoll, server, EPOLLIN);
                continue;
            }
            ssize_t got = recv(fd, bytes, sizeof bytes, MSG_DONTWAIT);
            if (got > 0) send(other[fd], bytes, got, MSG_NOSIGNAL);
            if (got == 0) close(other[fd]), close(fd);
        }
    }
}
