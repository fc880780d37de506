//go:build linux

package readme

import (
	"os"
	"strings"
	"testing"
)

// TestPagesShowTheExamples compares the only block of Go in a page with the example that it shows, without that one's
// comment. Package session/launch runs the first program under every launcher, test/examples all examples.
func TestPagesShowTheExamples(t *testing.T) {
	for page, program := range map[string]string{"README.md": "examples/job/main.go", "docs/driver.md": "examples/driver/main.go"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		_, shown, _ := strings.Cut(string(text), "```go\n")
		shown, _, _ = strings.Cut(shown, "```\n")
		source, err := os.ReadFile("../../" + program)
		if err != nil {
			t.Fatal(err)
		}
		_, code, _ := strings.Cut(string(source), "\npackage main\n")
		if want := "package main\n" + code; shown != want {
			t.Errorf("the program in %s differs from %s:\n got %s\nwant %s", page, program, shown, want)
		}
	}
}
