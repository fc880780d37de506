//go:build linux

package main

import (
	"fmt"
	"path"
	"strings"
)

// baseModules make the guest's hardware, root and network work. Names that a kernel has built in cost nothing.
var baseModules = []string{
	"virtio_pci", "virtio_console", "virtio_net", "9pnet_virtio", "9p", "overlay",
}

// rxeModules are for Soft-RoCE. It loads without the crc32 modules, but then no link can be added.
var rxeModules = []string{"crc32_generic", "crc32_pclmul", "rdma_rxe", "ib_uverbs", "rdma_ucm", "ib_umad"}

// A moduleIndex is what depmod says about the modules of one kernel.
type moduleIndex struct {
	paths   map[string]string   // by module name
	needs   map[string][]string // paths of the modules it needs, by path, the first to load last
	before  map[string][]string // names of modules to load before, where there are such, by name
	builtin map[string]bool     // by name
}

// moduleName is the name of the module in a file: dashes and underscores are the same in it.
func moduleName(file string) string {
	name, _, _ := strings.Cut(path.Base(file), ".ko")
	return strings.ReplaceAll(name, "-", "_")
}

// parseModules reads the contents of modules.dep, modules.builtin and modules.softdep.
func parseModules(dep, builtin, softdep string) *moduleIndex {
	index := &moduleIndex{
		paths: map[string]string{}, needs: map[string][]string{}, before: map[string][]string{}, builtin: map[string]bool{},
	}
	for line := range strings.Lines(dep) {
		file, needs, ok := strings.Cut(strings.TrimSpace(line), ":")
		if !ok {
			continue
		}
		index.paths[moduleName(file)] = file
		index.needs[file] = strings.Fields(needs)
	}
	for line := range strings.Lines(builtin) {
		index.builtin[moduleName(strings.TrimSpace(line))] = true
	}
	for line := range strings.Lines(softdep) {
		fields := strings.Fields(line)
		if len(fields) < 3 || fields[0] != "softdep" {
			continue
		}
		pre := false
		for _, word := range fields[2:] {
			switch {
			case strings.HasSuffix(word, ":"):
				pre = word == "pre:"
			case pre:
				name := moduleName(fields[1])
				index.before[name] = append(index.before[name], moduleName(word))
			}
		}
	}
	return index
}

// order returns the files of the modules and of all they need, each once, in an order in which they can be loaded.
func (x *moduleIndex) order(names []string) ([]string, error) {
	var files []string
	done := map[string]bool{}
	var add func(name string)
	add = func(name string) {
		file, ok := x.paths[name]
		if !ok || done[name] {
			return
		}
		done[name] = true
		for _, first := range x.before[name] {
			add(first)
		}
		for i := len(x.needs[file]) - 1; i >= 0; i-- {
			add(moduleName(x.needs[file][i]))
		}
		files = append(files, file)
	}
	for _, name := range names {
		name = moduleName(name)
		if _, ok := x.paths[name]; !ok && !x.builtin[name] {
			return nil, fmt.Errorf("this kernel has no module %q", name)
		}
		add(name)
	}
	return files, nil
}
