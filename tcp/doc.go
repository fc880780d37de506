// Package tcp is the driver over the kernel's TCP.
package tcp
