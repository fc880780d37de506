package abi

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"unsafe"
)

// structures by their names in the header.
var structures = map[string]any{
	"qnix_command": Command{}, "qnix_context": Context{}, "qnix_descriptor": Descriptor{},
	"qnix_memory_info": MemoryInfo{}, "qnix_vni_status": Status{}, "qnix_doorbell": Doorbell{},
	"qnix_info": Info{}, "qnix_register": Register{}, "qnix_translate": Translate{},
	"qnix_untranslate": Untranslate{}, "qnix_group": Group{}, "qnix_wait": Wait{},
	"qnix_statistics": Statistics{},
}

var constants = map[string]uint64{
	"QNIX_ABI_VERSION": Version, "QNIX_NAME_LEN": NameLen, "QNIX_NAMES_PER_COMMAND": NamesPerCommand,
	"QNIX_MAX_CONTEXTS": MaxContexts, "QNIX_MAX_COMMANDS": MaxCommands, "QNIX_MAX_REGION": MaxRegion,
	"QNIX_MAX_POOL": MaxPool, "QNIX_MAX_MESSAGE": MaxMessage, "QNIX_MAX_TAG": MaxTag,
	"QNIX_CMD_NONE": CmdNone, "QNIX_CMD_SEND": CmdSend, "QNIX_CMD_SEND_SHORT": CmdSendShort,
	"QNIX_CMD_BROADCAST": CmdBroadcast, "QNIX_CMD_BROADCAST_SHORT": CmdBroadcastShort,
	"QNIX_CMD_MULTICAST": CmdMulticast, "QNIX_CMD_MULTICAST_SHORT": CmdMulticastShort,
	"QNIX_CMD_NAMES": CmdNames, "QNIX_CMD_JOIN_GROUP": CmdJoinGroup, "QNIX_CMD_LEAVE_GROUP": CmdLeaveGroup,
	"QNIX_CMD_RECEIVE": CmdReceive, "QNIX_CMD_BARRIER": CmdBarrier,
	"QNIX_CMD_CANCEL_SEND": CmdCancelSend, "QNIX_CMD_CANCEL_RECEIVE": CmdCancelReceive,
	"QNIX_CTX_DOORBELL": CtxDoorbell, "QNIX_CTX_INLINE": CtxInline, "QNIX_CTX_POOL": CtxPool,
	"QNIX_DB_FREE": DBFree, "QNIX_DB_PENDING": DBPending, "QNIX_DB_DONE": DBDone,
	"QNIX_DB_TRUNCATED": DBTruncated, "QNIX_DB_UNKNOWN": DBUnknown, "QNIX_DB_GONE": DBGone,
	"QNIX_DB_CANCELED": DBCanceled, "QNIX_DB_INVALID": DBInvalid, "QNIX_DB_FAULT": DBFault,
	"QNIX_DB_NO_MEMORY": DBNoMemory, "QNIX_RING_RECEIVE": RingReceive, "QNIX_RING_INDEX": RingIndex,
	"QNIX_FEATURE_SOFT": FeatureSoft, "QNIX_ACCESS_READ": AccessRead, "QNIX_ACCESS_WRITE": AccessWrite,
	"QNIX_NO_POOL":  NoPool,
	"QNIX_IOC_INFO": uint64(IocInfo), "QNIX_IOC_REGISTER": uint64(IocRegister),
	"QNIX_IOC_DEREGISTER": IocDeregister, "QNIX_IOC_TRANSLATE": uint64(IocTranslate),
	"QNIX_IOC_UNTRANSLATE": uint64(IocUntranslate), "QNIX_IOC_JOIN": uint64(IocJoin),
	"QNIX_IOC_LEAVE": uint64(IocLeave), "QNIX_IOC_DOORBELL": IocDoorbell, "QNIX_IOC_WAIT": uint64(IocWait),
	"QNIX_IOC_STATISTICS": uint64(IocStatistics),
}

// cName is a field's name in the header.
func cName(field string) string {
	field = strings.NewReplacer("ABI", "Abi", "VNI", "Vni", "NICs", "Nics", "HPS", "Hps", "NIC", "Nic", "PID", "Pid").Replace(field)
	var b strings.Builder
	for i, r := range field {
		if i > 0 && r >= 'A' && r <= 'Z' {
			b.WriteByte('_')
		}
		b.WriteRune(r)
	}
	return strings.ToLower(b.String())
}

// TestHeaderAgrees compiles a program that prints every size, offset and value
// of the header, and compares.
func TestHeaderAgrees(t *testing.T) {
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("needs a C compiler (cc)")
	}
	dir := t.TempDir()
	var src strings.Builder
	want := map[string]uint64{}
	src.WriteString("#include <stdio.h>\n#include <stddef.h>\n#include \"qnix.h\"\nint main(void)\n{\n")
	put := func(what, expr string, v uint64) {
		want[what] = v
		fmt.Fprintf(&src, "\tprintf(\"%s %%llu\\n\", (unsigned long long)(%s));\n", what, expr)
	}
	for name, v := range structures {
		typ := reflect.TypeOf(v)
		put(name, "sizeof(struct "+name+")", uint64(typ.Size()))
		for i := range typ.NumField() {
			f := typ.Field(i)
			m := cName(f.Name)
			put(name+"."+m, fmt.Sprintf("offsetof(struct %s, %s)", name, m), uint64(f.Offset))
			put("size:"+name+"."+m, fmt.Sprintf("sizeof(((struct %s *)0)->%s)", name, m), uint64(f.Type.Size()))
		}
	}
	put("names", "offsetof(struct qnix_command, names)", uint64(unsafe.Offsetof(Names{}.Names)))
	for name, v := range constants {
		put(name, name, v)
	}
	src.WriteString("\treturn 0;\n}\n")
	if err := os.WriteFile(filepath.Join(dir, "a.c"), []byte(src.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	uapi, err := filepath.Abs("../../../kmod/uapi")
	if err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(cc, "-I", uapi, "-o", filepath.Join(dir, "a"), filepath.Join(dir, "a.c")).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	out, err := exec.Command(filepath.Join(dir, "a")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(out)) {
		var what string
		var v uint64
		if _, err := fmt.Sscan(line, &what, &v); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if w, ok := want[what]; !ok || v != w {
			t.Errorf("%s: the header has %d, Go has %d", what, v, w)
		}
		delete(want, what)
	}
	for what := range want {
		t.Errorf("%s was not printed", what)
	}
}

// TestFieldsCoverStructures: no hole in which a compiler could put what it
// likes, and in which memory of ours could leak.
func TestFieldsCoverStructures(t *testing.T) {
	structures := maps.Clone(structures)
	structures["header"], structures["answer"] = Header{}, Answer{}
	for name, v := range structures {
		typ := reflect.TypeOf(v)
		var end uintptr
		for i := range typ.NumField() {
			f := typ.Field(i)
			if f.Offset != end {
				t.Errorf("%s.%s: a hole of %d bytes before it", name, f.Name, f.Offset-end)
			}
			end = f.Offset + f.Type.Size()
		}
		if end != typ.Size() {
			t.Errorf("%s: a hole of %d bytes at its end", name, typ.Size()-end)
		}
	}
}

// TestSizes: golden numbers, for machines without a compiler.
func TestSizes(t *testing.T) {
	for name, want := range map[string]uintptr{
		"qnix_command": 64, "qnix_context": 64, "qnix_descriptor": 16, "qnix_memory_info": 80,
		"qnix_vni_status": 192, "qnix_doorbell": 8, "qnix_info": 128, "qnix_register": 104,
		"qnix_translate": 32, "qnix_untranslate": 8, "qnix_group": 32, "qnix_wait": 16, "qnix_statistics": 192,
	} {
		if got := reflect.TypeOf(structures[name]).Size(); got != want {
			t.Errorf("%s: %d bytes, want %d", name, got, want)
		}
	}
	for _, x := range []struct {
		name      string
		got, want uintptr
	}{
		{"status.ring_tail", unsafe.Offsetof(Status{}.RingTail), 64},
		{"status.sleepers", unsafe.Offsetof(Status{}.Sleepers), 128},
		{"register.pid", unsafe.Offsetof(Register{}.PID), 68},
		{"register.vni_offset", unsafe.Offsetof(Register{}.VNIOffset), 80},
		{"QNIX_IOC_INFO", IocInfo, 0x8080d900},
		{"QNIX_IOC_REGISTER", IocRegister, 0xc068d901},
		{"QNIX_IOC_DOORBELL", IocDoorbell, 0xd907},
	} {
		if x.got != x.want {
			t.Errorf("%s: %#x, want %#x", x.name, x.got, x.want)
		}
	}
}
