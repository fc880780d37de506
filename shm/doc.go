// Package shm is the driver for processes on one host.
package shm
