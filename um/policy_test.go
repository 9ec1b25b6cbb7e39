package um

import (
	"strings"
	"testing"
)

func TestPolicyByName(t *testing.T) {
	for _, want := range []string{"naive", "lru", "deepum", "penstock"} {
		if p, err := PolicyByName(want); err != nil || p.Name != want || p.Victims == nil {
			t.Errorf("%s is %+v, %v", want, p, err)
		}
	}
	if _, err := PolicyByName("oracle"); err == nil || !strings.Contains(err.Error(), "choose one of") {
		t.Errorf("no engine has an oracle for a policy, yet: %v", err)
	}
}
