//go:build linux

package nic

import (
	"context"

	"github.com/bywash/bywash/qnix/internal/abi"
)

// Join joins a group without using a Send Context. It blocks until size processes have joined, for at most 30 s
// (ETIMEDOUT), until Leave (ECANCELED), or until the context ends; the module knows the context's deadline only.
func (p *Process) Join(ctx context.Context, group Name, size int) error {
	if size < 1 || size > abi.MaxMessage {
		return ErrInvalid
	}
	if p.Gone() {
		return p.over()
	}
	g := abi.Group{Name: group, Size: uint32(size), TimeoutMs: timeoutMs(ctx)}
	if err := p.host.join(ctx, &g); err != nil {
		return hostError("join "+group.String(), err)
	}
	return nil
}

// Leave leaves a group, and ends a Join under way.
func (p *Process) Leave(group Name) error {
	if p.Gone() {
		return p.over()
	}
	if err := p.host.leave(&abi.Group{Name: group}); err != nil {
		return hostError("leave "+group.String(), err)
	}
	return nil
}
