package launch

const nameAlone = "alone"

// alone is the key-value space of a process that no launcher started.
type alone map[string]string

var _ kvs = alone{}

// Alone returns a job of one rank, with a random secret.
func Alone() *Client { return aloneWith(NewSecret()) }

func aloneWith(secret []byte) *Client {
	c := newKeyed(nameAlone, 0, 1, alone{}).client
	_ = c.setSecret(secret) // fails for shorter ones only
	return c
}

func (a alone) put(key, value string) error           { a[key] = value; return nil }
func (a alone) get(_ int, key string) (string, error) { return a[key], nil }
func (alone) maxValue() int                           { return 2 * MaxCard }
func (alone) fence() error                            { return nil }
func (alone) oneHost(int) (bool, error)               { return true, nil }
func (alone) watch(func(error))                       {}
func (alone) abort(int, string)                       {} // the caller exits
func (alone) close() error                            { return nil }
func (alone) hangUp()                                 {}
func (alone) traffic() Traffic                        { return Traffic{} }
