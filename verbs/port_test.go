package verbs

import (
	"errors"
	"strings"
	"testing"

	"github.com/bywash/bywash/driver"
)

func TestAPortThatIsNotThereIsNamedWithThoseThatAre(t *testing.T) {
	for _, c := range []struct {
		ports, num int
		want       string // empty: no error
	}{
		{1, 0, ""}, {1, 1, ""}, {2, 2, ""},
		{1, 2, "device rxe0 has no port 2, only port 1"},
		{2, 3, "device rxe0 has no port 3: its ports are rxe0:1 to rxe0:2"},
	} {
		err := checkPort("rxe0", c.ports, c.num)
		if c.want == "" && err != nil || c.want != "" && (!errors.Is(err, driver.ErrInvalid) || !strings.HasSuffix(err.Error(), c.want)) {
			t.Errorf("port %d of %d: %v, want %q", c.num, c.ports, err, c.want)
		}
	}
}
