//go:build linux && !(386 || arm || mips || mipsle)

package doctor

import (
	"cmp"
	"fmt"
	"io/fs"
	"path"
	"strings"

	"github.com/bywash/bywash/verbs/ibv"
)

// kernelDevices are the RDMA devices as the kernel shows them, which takes no library.
func (r *reporter) kernelDevices() {
	r.section("RDMA devices, from the kernel")
	devices, _ := fs.Glob(r.root, rdmaClass+"/*")
	if len(devices) == 0 {
		r.printf("none\n")
	}
	for _, d := range devices {
		r.printf("%s\n", path.Base(d))
		for _, name := range []string{
			"node_type", "fw_ver", "hca_type", "hw_rev", "board_id", "device/vendor", "device/device", "device/subsystem_vendor",
			"device/subsystem_device", "device/numa_node", "device/current_link_speed", "device/current_link_width", "parent",
		} {
			r.field(2, name, r.read(d+"/"+name))
		}
		if target, err := fs.ReadLink(r.root, d+"/device/driver"); err == nil {
			r.field(2, "driver", path.Base(target))
		}
		ports, _ := fs.Glob(r.root, d+"/ports/*")
		for _, p := range ports {
			r.kernelPort(p)
		}
	}
}

func (r *reporter) kernelPort(p string) {
	r.printf("  port %s\n", path.Base(p))
	for _, name := range []string{"state", "phys_state", "link_layer", "rate", "lid", "sm_lid", "cap_mask"} {
		r.field(4, name, r.read(p+"/"+name))
	}
	gids, _ := fs.Glob(r.root, p+"/gids/*")
	for _, g := range gids {
		if gid := r.read(g); strings.Trim(gid, "0:") != "" {
			k := path.Base(g)
			kind, dev := r.read(p+"/gid_attrs/types/"+k), r.read(p+"/gid_attrs/ndevs/"+k)
			r.field(4, "gid "+k, strings.TrimSpace(strings.Join([]string{gid, kind, dev}, " ")))
		}
	}
	pkeys, _ := fs.Glob(r.root, p+"/pkeys/*")
	for _, k := range pkeys {
		if key := r.read(k); key != "0x0000" {
			r.field(4, "pkey "+path.Base(k), key)
		}
	}
}

// grants are the limits that a device announces, and what it grants of what the driver asks for.
func (r *reporter) grants() {
	r.section("RDMA devices, from the library")
	devices, err := ibv.Devices()
	if err != nil {
		r.printf("%v\n", err)
		return
	}
	if len(devices) == 0 {
		r.printf("none\n")
	}
	for _, d := range devices {
		r.printf("%s\n", d.Name)
		if err := r.granted(d); err != nil {
			r.printf("  %v\n", err)
		}
	}
}

func (r *reporter) granted(d ibv.DeviceInfo) (err error) {
	c, err := ibv.Open(d.Name)
	if err != nil {
		return err
	}
	defer closes(&err, c.Close)
	attr := c.Query()
	r.field(2, "limits", fmt.Sprintf("%+v", attr))
	for port := 1; port <= attr.Ports; port++ {
		if p, err := c.QueryPort(port); err != nil {
			r.field(2, fmt.Sprintf("port %d", port), err.Error())
		} else {
			r.field(2, fmt.Sprintf("port %d", port), fmt.Sprintf("%+v", p))
		}
	}
	pd, err := c.AllocPD()
	if err != nil {
		return err
	}
	defer closes(&err, pd.Close)
	r.grantedObjects(pd, attr)
	return r.grantedQueues(c, pd)
}

// closes closes an object; the error of the first failure stays.
func closes(err *error, f func() error) { *err = cmp.Or(*err, f()) }

// grantedObjects tries what is optional and stands for itself.
func (r *reporter) grantedObjects(pd *ibv.PD, attr ibv.DeviceAttr) {
	r.field(2, "shared receive queue", tried(func() error {
		srq, err := pd.CreateSRQ(min(512, max(attr.MaxSRQWR, 1)), 1)
		if err != nil {
			return err
		}
		return srq.Close()
	}))
	r.field(2, "memory window, type 2", tried(func() error {
		mw, err := pd.AllocMW()
		if err != nil {
			return err
		}
		return mw.Close()
	}))
	const full = ibv.AccessLocalWrite | ibv.AccessRemoteWrite | ibv.AccessRemoteRead
	for _, a := range []struct {
		name   string
		access ibv.Access
	}{{"registration", full}, {"  with atomics", full | ibv.AccessRemoteAtomic}, {"  with window binding", full | ibv.AccessMWBind}} {
		r.field(2, a.name, tried(func() error {
			mr, err := pd.RegMR(make([]byte, 1<<16), a.access)
			if err != nil {
				return err
			}
			return mr.Close()
		}))
	}
}

// grantedQueues tries queue pairs of several sizes, and a completion queue that grows.
func (r *reporter) grantedQueues(c *ibv.Context, pd *ibv.PD) (err error) {
	cq, err := c.CreateCQ(512, nil, 0)
	if err != nil {
		return err
	}
	defer closes(&err, cq.Close)
	r.field(2, "completion queue", fmt.Sprintf("%d entries of 512 asked for", cq.Len()))
	r.field(2, "  grows to 1024", tried(func() error { return cq.Resize(1024) }))
	for _, inline := range []int{0, 32, 64, 96, 128, 220, 512} {
		qp, e := pd.CreateQP(ibv.QPInit{SendCQ: cq, RecvCQ: cq, MaxSendWR: 64, MaxRecvWR: 64, MaxInline: inline, Oversubscribe: true})
		name := fmt.Sprintf("queue pair, inline %d", inline)
		if e != nil {
			r.field(2, name, "refused: "+e.Error())
			continue
		}
		r.field(2, name, fmt.Sprintf("%+v", qp.Caps()))
		closes(&err, qp.Close)
	}
	return err
}

func tried(f func() error) string {
	if err := f(); err != nil {
		return "refused: " + err.Error()
	}
	return "granted"
}
