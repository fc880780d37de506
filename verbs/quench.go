package verbs

// quench makes the device let go of all memory of a connection that has ended:
// once the queue pairs are closed it neither reads nor writes for them.
// What had come before is in the inbox afterwards.
func (n *conn) quench() {
	if n.quenched {
		return
	}
	n.quenched = true
	n.ctx.drainAll()
	n.closeQueues()
}

// closeQueues closes the queue pairs, and first what is bound to them: Soft-RoCE
// waits for it.
func (n *conn) closeQueues() {
	n.api.unbind()
	for _, qp := range n.qps {
		_ = qp.Close()
	}
}
