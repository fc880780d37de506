package kit_test

import (
	"errors"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/bywash/bywash/driver"
	"github.com/bywash/bywash/internal/kit"
)

type settings struct {
	size  int
	dead  time.Duration
	color rune
	on    bool
	text  string
	other map[string]string
}

var table = kit.Options[settings]{
	Driver:   "test",
	Defaults: settings{size: 7, dead: time.Second, color: 'r', on: true},
	Table: []kit.Option[settings]{
		kit.Int("size", "how many", 1, 16, func(s *settings) *int { return &s.size }),
		kit.DeadTime(func(s *settings) *time.Duration { return &s.dead }),
		kit.Choice("color", "red | green", "what it looks like", func(s *settings) *rune { return &s.color },
			map[string]rune{"red": 'r', "green": 'g'}),
		kit.Switch("switch", "whether it does", func(s *settings) *bool { return &s.on }),
		kit.Text("text", "a word", "the text", func(s *settings, v string) bool { s.text = v; return v != "" }),
	},
	Other: func(s *settings, name, value string) bool {
		s.other = map[string]string{name: value}
		return strings.HasPrefix(name, "x-")
	},
}

func TestOptions(t *testing.T) {
	for _, x := range []struct {
		name, value string
		want        func(*settings) bool // nil: it is refused
	}{
		{"size", "16", func(s *settings) bool { return s.size == 16 && s.on && s.dead == time.Second }},
		{"size", "0x10", func(s *settings) bool { return s.size == 16 }},
		{"size", "17", nil}, {"size", "0", nil}, {"size", "", nil}, {"size", "1k", nil},
		{"size", "99999999999999999999", nil},
		{"dead-time", "2s", func(s *settings) bool { return s.dead == 2*time.Second }},
		{"dead-time", "2", nil}, {"dead-time", "2h", nil},
		{"color", "green", func(s *settings) bool { return s.color == 'g' && s.size == 7 }}, {"color", "blue", nil},
		{"switch", "off", func(s *settings) bool { return !s.on }}, {"switch", "true", nil},
		{"text", "word", func(s *settings) bool { return s.text == "word" }}, {"text", "", nil},
		{"x-ray", "1", func(s *settings) bool { return s.other["x-ray"] == "1" }}, {"sizes", "1", nil}, {"", "1", nil},
	} {
		s, err := table.Parse(map[string]string{x.name: x.value})
		switch {
		case x.want == nil:
			if !errors.Is(err, driver.ErrInvalid) || !strings.Contains(err.Error(), "test") ||
				!strings.Contains(err.Error(), x.name) {
				t.Errorf("%s=%q: %v, want an error that names it", x.name, x.value, err)
			}
		case err != nil || !x.want(&s):
			t.Errorf("%s=%q: %+v, %v", x.name, x.value, s, err)
		}
	}
	if s, err := table.Parse(nil); err != nil || s.size != 7 || s.color != 'r' {
		t.Errorf("no options: %+v, %v", s, err)
	}
}

func TestErrorsOfOptionsNameTheRemedy(t *testing.T) {
	for name, want := range map[string]string{
		"size": "1 to 16", "color": "red | green", "nonsense": "size, dead-time, color, switch, text",
	} {
		if _, err := table.Parse(map[string]string{name: "?"}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to name %q", name, err, want)
		}
	}
}

func TestOptionsAreListed(t *testing.T) {
	defaults := map[string]string{}
	for _, o := range table.List() {
		defaults[o.Name] = o.Default
		if o.Help == "" || o.Values == "" {
			t.Errorf("%+v", o)
		}
	}
	want := map[string]string{"size": "7", "dead-time": "1s", "color": "red", "switch": "on", "text": ""}
	if !maps.Equal(defaults, want) {
		t.Errorf("got %v, want %v", defaults, want)
	}
}
