// Package veth makes network namespaces joined by a pair of virtual Ethernet
// devices, for tests and measurements on one machine. It needs root
// (CAP_SYS_ADMIN and CAP_NET_ADMIN).
//
//	p, err := veth.New(veth.Config{Queues: 2})
//	defer p.Close()
//	p.Ends[0].Do(func() error { … })      // a function inside
//	p.Ends[1].Start(exec.Command("iperf3", "-s")) // a process inside
//
// The namespaces have no name: nothing is mounted under /run/netns. Descriptors of this process, and the processes
// inside, keep them alive. When those end, even by kill -9, the namespaces and devices vanish.
//
// With [Config.Router] the two ends lie in different subnets, and a third
// namespace forwards between them, so that frames go by a next hop. With
// [Config.Box] they lie in one subnet, and a program in the third namespace
// delays and loses frames between them.
package veth
