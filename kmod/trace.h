/* SPDX-License-Identifier: GPL-2.0 OR BSD-2-Clause */
/* Tracepoints: /sys/kernel/tracing/events/qnix. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM qnix

#if !defined(_QNIX_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define _QNIX_TRACE_H

#include <linux/tracepoint.h>

#include "uapi/qnix.h"

TRACE_EVENT(qnix_register,
	    TP_PROTO(u16 nic, u16 pid, u16 generation, const u8 *name),
	    TP_ARGS(nic, pid, generation, name),
	    TP_STRUCT__entry(
		__field(u16, nic)
		__field(u16, pid)
		__field(u16, generation)
		__array(char, name, QNIX_NAME_LEN)
	    ),
	    TP_fast_assign(
		__entry->nic = nic;
		__entry->pid = pid;
		__entry->generation = generation;
		memcpy(__entry->name, name, QNIX_NAME_LEN);
	    ),
	    TP_printk("nic=%u pid=%u generation=%u name=%s",
		      __entry->nic, __entry->pid, __entry->generation, __entry->name)
);

TRACE_EVENT(qnix_deregister,
	    TP_PROTO(u16 nic, u16 pid, u16 generation),
	    TP_ARGS(nic, pid, generation),
	    TP_STRUCT__entry(
		__field(u16, nic)
		__field(u16, pid)
		__field(u16, generation)
	    ),
	    TP_fast_assign(
		__entry->nic = nic;
		__entry->pid = pid;
		__entry->generation = generation;
	    ),
	    TP_printk("nic=%u pid=%u generation=%u",
		      __entry->nic, __entry->pid, __entry->generation)
);

DECLARE_EVENT_CLASS(qnix_translation,
		    TP_PROTO(u16 nic, u16 pid, u32 handle, unsigned long pages),
		    TP_ARGS(nic, pid, handle, pages),
		    TP_STRUCT__entry(
		__field(u16, nic)
		__field(u16, pid)
		__field(u32, handle)
		__field(unsigned long, pages)
		    ),
		    TP_fast_assign(
		__entry->nic = nic;
		__entry->pid = pid;
		__entry->handle = handle;
		__entry->pages = pages;
		    ),
		    TP_printk("nic=%u pid=%u handle=%u pages=%lu",
			      __entry->nic, __entry->pid, __entry->handle, __entry->pages)
);

DEFINE_EVENT(qnix_translation, qnix_translate,
	     TP_PROTO(u16 nic, u16 pid, u32 handle, unsigned long pages),
	     TP_ARGS(nic, pid, handle, pages)
);

DEFINE_EVENT(qnix_translation, qnix_untranslate,
	     TP_PROTO(u16 nic, u16 pid, u32 handle, unsigned long pages),
	     TP_ARGS(nic, pid, handle, pages)
);

TRACE_EVENT(qnix_run,
	    TP_PROTO(u16 nic, unsigned int steps, bool thread),
	    TP_ARGS(nic, steps, thread),
	    TP_STRUCT__entry(
		__field(u16, nic)
		__field(unsigned int, steps)
		__field(bool, thread)
	    ),
	    TP_fast_assign(
		__entry->nic = nic;
		__entry->steps = steps;
		__entry->thread = thread;
	    ),
	    TP_printk("nic=%u steps=%u by=%s", __entry->nic, __entry->steps,
		      __entry->thread ? "thread" : "caller")
);

TRACE_EVENT(qnix_link,
	    TP_PROTO(u16 nic, u16 peer, bool up, u8 reason),
	    TP_ARGS(nic, peer, up, reason),
	    TP_STRUCT__entry(
		__field(u16, nic)
		__field(u16, peer)
		__field(bool, up)
		__field(u8, reason)
	    ),
	    TP_fast_assign(
		__entry->nic = nic;
		__entry->peer = peer;
		__entry->up = up;
		__entry->reason = reason;
	    ),
	    TP_printk("nic=%u peer=%u %s reason=%u", __entry->nic, __entry->peer,
		      __entry->up ? "up" : "down", __entry->reason)
);

#endif /* _QNIX_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
