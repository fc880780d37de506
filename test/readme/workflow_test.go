//go:build linux

package readme

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

var (
	workflowMake   = regexp.MustCompile(`(?m)^ +make: (.*)$`)
	workflowGroups = regexp.MustCompile(`GROUPS='([^']*)'`)
)

// TestWorkflowNamesTargetsThatExist is a dry run of what the workflow runs: make knows each target, and hack/test each group.
func TestWorkflowNamesTargetsThatExist(t *testing.T) {
	text, err := os.ReadFile("../../.github/workflows/ci.yml")
	if err != nil {
		t.Fatal(err)
	}
	jobs := workflowMake.FindAllStringSubmatch(string(text), -1)
	if len(jobs) == 0 {
		t.Fatal("the workflow runs no target of make")
	}
	for _, job := range jobs {
		commands := [][]string{{"sh", "-c", "make -n " + job[1]}}
		if groups := workflowGroups.FindStringSubmatch(job[1]); groups != nil {
			commands = append(commands, append([]string{"hack/test", "show"}, strings.Fields(groups[1])...))
		}
		for _, args := range commands {
			c := exec.Command(args[0], args[1:]...)
			c.Dir = "../.."
			if out, err := c.CombinedOutput(); err != nil {
				t.Errorf("%q: %v\n%s", args, err, out)
			}
		}
	}
}
