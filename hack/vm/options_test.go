//go:build linux

package main

import (
	"bytes"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
)

func TestFlags(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	o, err := parseOptions(strings.Fields("-kernel 6.12 -two -siw -mtu 9000 -modules veth,dummy -modules ./own.ko "+
		"-env A=1 -env B=x=y -out results -timeout 90s -- cmd -v --flag"), io.Discard)
	if err != nil {
		t.Fatal(err)
	}
	if o.kernel != "6.12" || !o.two || !o.siw || o.mtu != 9000 || o.timeout != 90*time.Second ||
		o.out != filepath.Join(here, "results") ||
		!slices.Equal(o.modules, []string{"veth", "dummy", "./own.ko"}) || !slices.Equal(o.env, []string{"A=1", "B=x=y"}) ||
		!slices.Equal(o.command, []string{"cmd", "-v", "--flag"}) {
		t.Errorf("%+v", o)
	}
	o, err = parseOptions([]string{"true"}, io.Discard)
	if err != nil || o.timeout != 8*time.Minute || o.kernel != "6.1" || o.memory != 2048 {
		t.Errorf("defaults: %+v, %v", o, err)
	}
	if o, err := parseOptions([]string{"-shell"}, io.Discard); err != nil || o.timeout != 0 {
		t.Errorf("a shell has no time limit: %+v, %v", o, err)
	}
}

// TestSkipIsOneOfGoTest has go's own program read what -skip prints.
func TestSkipIsOneOfGoTest(t *testing.T) {
	for _, command := range [][]string{{"x.test", "-test.v=true"}, {"x.test", "-test.v=test2json"}} {
		var out bytes.Buffer
		skipped(&out, command, errors.New("no kernel\nanywhere"))
		convert := exec.Command("go", "tool", "test2json")
		convert.Stdin = &out
		events, err := convert.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %s", err, events)
		}
		for _, want := range []string{`"Action":"skip","Test":"VirtualMachine"`, "no virtual machine here: no kernel; anywhere", `"Action":"pass"}`} {
			if !strings.Contains(string(events), want) {
				t.Errorf("%q: no %s in:\n%s", command, want, events)
			}
		}
	}
}

func TestWrongUsageSaysWhatIsWrong(t *testing.T) {
	for args, want := range map[string]string{
		"":                                 "no command",
		"-two":                             "no command",
		"-shell true":                      "takes no command",
		"-shell -two":                      "-shell and -two",
		"-headers true":                    "-headers takes no command",
		"-headers -shell":                  "-headers takes no command",
		"-kernel 5.10 true":                "-kernel 5.10: want 6.1 or 6.12",
		"-kernel 6.12 -debug true":         "-debug is for -kernel 6.1 only",
		"-siw -debug true":                 "-siw is for stock kernels only",
		"-siw -headers":                    "-siw and -headers",
		"-netem delay true":                "-netem needs -two",
		"-mtu 100 true":                    "-mtu 100: want 1280 to 9000",
		"-mem 1 true":                      "-mem 1: want at least 256 MiB",
		"-cpus 0 true":                     "-cpus 0: want 1 to 64",
		"-timeout -1s true":                "-timeout -1s",
		"-accel xen true":                  "-accel xen: want auto, kvm or tcg",
		"-env NOTHING true":                "want NAME=VALUE",
		"-env 1A=2 true":                   `"1A" is no name`,
		"-env A-B=2 true":                  `"A-B" is no name`,
		"-unknown true":                    "-unknown",
		"-timeout 5 -- true":               "-timeout",
		"-kernel 6.1 -two -netem x -shell": "-shell and -two",
	} {
		if _, err := parseOptions(strings.Fields(args), io.Discard); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", args, err, want)
		}
	}
}

func TestHelpNamesEveryFlag(t *testing.T) {
	var help bytes.Buffer
	if _, err := parseOptions([]string{"--help"}, &help); !errors.Is(err, flag.ErrHelp) {
		t.Fatal(err)
	}
	source, err := os.ReadFile("options.go")
	if err != nil {
		t.Fatal(err)
	}
	flags := regexp.MustCompile(`f\.\w+\((?:&o\.\w+, )?"(\w+)", `).FindAllSubmatch(source, -1)
	if len(flags) < 15 {
		t.Fatalf("%d flags found", len(flags))
	}
	for _, f := range flags {
		if !regexp.MustCompile(`(?m)^  -` + string(f[1]) + `\b`).Match(help.Bytes()) {
			t.Errorf("-help does not explain -%s", f[1])
		}
	}
}
