// Package afxdp is the driver for Ethernet, past the kernel's network stack by AF_XDP.
package afxdp
