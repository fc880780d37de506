// SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause
/* Datagrams over one UDP socket of the host, for IPv4 and IPv6; a thread receives them. */
#include <linux/inet.h>
#include <linux/kthread.h>
#include <linux/mm.h>
#include <linux/net.h>
#include <linux/slab.h>
#include <linux/in6.h>
#include <net/ipv6.h>
#include <net/net_namespace.h>
#include <net/sock.h>

#include "host.h"

#define QNIX_UDP_BATCH	64		/* datagrams before the NICs run */
#define QNIX_UDP_BUFFER	(2 << 20)	/* bytes of each direction */

static struct socket *qnix_socket;
static struct task_struct *qnix_receiver;
static void *qnix_received;

/* The contents of a wire_address: an IPv6 address, which may be IPv4-mapped, and a port. */
struct qnix_endpoint {
	struct in6_addr ip;
	__be16 port;
	u16 pad;
	u32 scope;
};

static_assert(sizeof(struct qnix_endpoint) <= sizeof(struct wire_address));

static void qnix_endpoint_get(struct qnix_endpoint *e, const struct wire_address *a)
{
	memcpy(e, a->bytes, sizeof(*e));
}

static void qnix_endpoint_put(const struct qnix_endpoint *e, struct wire_address *a)
{
	memset(a, 0, sizeof(*a));
	memcpy(a->bytes, e, sizeof(*e));
}

static void qnix_address_from(const struct sockaddr_storage *from, struct wire_address *a)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)from;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)from;
	struct qnix_endpoint e = {};

	if (from->ss_family == AF_INET) {
		ipv6_addr_set_v4mapped(in->sin_addr.s_addr, &e.ip);
		e.port = in->sin_port;
	} else {
		e.ip = in6->sin6_addr;
		e.port = in6->sin6_port;
		e.scope = in6->sin6_scope_id;
	}
	qnix_endpoint_put(&e, a);
}

/* Converts the address for a socket of @family. Returns false if the socket cannot reach it. */
static bool qnix_address_to(const struct wire_address *a, unsigned short family,
			    struct sockaddr_storage *to, int *len)
{
	struct sockaddr_in *in = (struct sockaddr_in *)to;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)to;
	struct qnix_endpoint e;

	qnix_endpoint_get(&e, a);
	memset(to, 0, sizeof(*to));
	to->ss_family = family;
	if (family == AF_INET) {
		in->sin_addr.s_addr = e.ip.s6_addr32[3];
		in->sin_port = e.port;
		*len = sizeof(*in);
		return ipv6_addr_v4mapped(&e.ip);
	}
	in6->sin6_addr = e.ip;
	in6->sin6_port = e.port;
	in6->sin6_scope_id = e.scope;
	*len = sizeof(*in6);
	return true;
}

/* A datagram that cannot be sent now is lost; the wire repeats it. */
void qnix_udp_send(const struct wire_address *to, void *datagram, u32 size)
{
	struct kvec vec = { .iov_base = datagram, .iov_len = size };
	struct sockaddr_storage name;
	struct msghdr msg = {
		.msg_name = &name,
		.msg_flags = MSG_DONTWAIT | MSG_NOSIGNAL,
	};

	if (qnix_address_to(to, qnix_socket->sk->sk_family, &name, &msg.msg_namelen))
		kernel_sendmsg(qnix_socket, &msg, &vec, 1, size);
}

static int qnix_udp_receive(void *buffer, int flags)
{
	/* One byte more, to recognise datagrams that are too long. */
	struct kvec vec = { .iov_base = buffer, .iov_len = qnix_params.datagram + 1 };
	struct sockaddr_storage name;
	struct msghdr msg = { .msg_name = &name };
	struct wire_address from;
	int size;

	size = kernel_recvmsg(qnix_socket, &msg, &vec, 1, vec.iov_len, flags);
	if (size > 0 && msg.msg_namelen) {
		qnix_address_from(&name, &from);
		qnix_net_input(&from, buffer, size);
	}
	return size;
}

/* Ends when the socket is shut down. Other errors concern single datagrams. */
static int qnix_udp_thread(void *unused)
{
	int more;

	while (!kthread_should_stop()) {
		qnix_udp_receive(qnix_received, 0);
		more = QNIX_UDP_BATCH;
		while (--more && qnix_udp_receive(qnix_received, MSG_DONTWAIT) > 0)
			;
		qnix_net_ran();
		cond_resched_tasks_rcu_qs();
	}
	return 0;
}

static int qnix_udp_bind(unsigned short family)
{
	struct sockaddr_storage name = { .ss_family = family };
	struct socket *sock;
	int err;

	err = sock_create_kern(&init_net, family, SOCK_DGRAM, IPPROTO_UDP, &sock);
	if (err)
		return err;
	sock->sk->sk_ipv6only = 0;
	sock_set_rcvbuf(sock->sk, QNIX_UDP_BUFFER);
	lock_sock(sock->sk);
	sock->sk->sk_sndbuf = QNIX_UDP_BUFFER;
	sock->sk->sk_userlocks |= SOCK_SNDBUF_LOCK;
	release_sock(sock->sk);
	/* The port has the same offset in both kinds of addresses. */
	((struct sockaddr_in *)&name)->sin_port = htons(qnix_params.port);
	err = kernel_bind(sock, (struct sockaddr *)&name, family == AF_INET ?
			  sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6));
	if (err)
		sock_release(sock);
	else
		qnix_socket = sock;
	return err;
}

int qnix_udp_open(void)
{
	struct task_struct *thread = ERR_PTR(-ENOMEM);
	int err;

	err = qnix_udp_bind(AF_INET6);
	if (err == -EAFNOSUPPORT || err == -EADDRNOTAVAIL)
		err = qnix_udp_bind(AF_INET);
	if (err) {
		pr_err("qnix: cannot have UDP port %u: %pe\n", qnix_params.port, ERR_PTR(err));
		return err;
	}
	qnix_received = kvmalloc(qnix_params.datagram + 1, GFP_KERNEL);
	if (qnix_received)
		thread = kthread_run(qnix_udp_thread, NULL, "qnix/udp");
	if (IS_ERR(thread)) {
		kvfree(qnix_received);
		qnix_received = NULL;
		sock_release(qnix_socket);
		qnix_socket = NULL;
		return PTR_ERR(thread);
	}
	qnix_receiver = thread;
	return 0;
}

/* To be called when no NIC has a wire any more. */
void qnix_udp_close(void)
{
	kernel_sock_shutdown(qnix_socket, SHUT_RDWR);
	kthread_stop(qnix_receiver);
	qnix_receiver = NULL;
	kvfree(qnix_received);
	qnix_received = NULL;
	sock_release(qnix_socket);
	qnix_socket = NULL;
}

/*
 * Parses ADDRESS, ADDRESS:PORT or [ADDRESS]:PORT, for IPv4 or IPv6. The default port is the
 * module's.
 */
int qnix_udp_parse(const char *text, struct wire_address *address)
{
	char ip[INET6_ADDRSTRLEN + 16], port[8] = "";
	struct sockaddr_storage name;
	const char *colon = strrchr(text, ':');
	size_t len = strlen(text);

	if (text[0] == '[') {
		const char *end = strchr(++text, ']');

		if (!end || (end[1] && end[1] != ':'))
			return -EINVAL;
		len = end - text;
		colon = end[1] ? end + 1 : NULL;
	} else if (colon && strchr(text, ':') == colon) {
		len = colon - text;
	} else {
		colon = NULL;
	}
	if (len >= sizeof(ip) || (colon && strscpy(port, colon + 1, sizeof(port)) <= 0))
		return -EINVAL;
	memcpy(ip, text, len);
	ip[len] = 0;
	if (!colon)
		snprintf(port, sizeof(port), "%u", qnix_params.port);
	memset(&name, 0, sizeof(name));
	if (inet_pton_with_scope(&init_net, AF_UNSPEC, ip, port, &name))
		return -EINVAL;
	qnix_address_from(&name, address);
	return 0;
}

int qnix_udp_print(char *text, size_t room, const struct wire_address *address)
{
	struct qnix_endpoint e;

	qnix_endpoint_get(&e, address);
	if (ipv6_addr_v4mapped(&e.ip))
		return scnprintf(text, room, "%pI4:%u", &e.ip.s6_addr32[3], ntohs(e.port));
	if (e.scope)
		return scnprintf(text, room, "[%pI6c%%%u]:%u", &e.ip, e.scope, ntohs(e.port));
	return scnprintf(text, room, "[%pI6c]:%u", &e.ip, ntohs(e.port));
}
