package jobs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// ending is that of a socket's name.
const ending = ".sock"

// Folders are where a job of this user may listen, the best first: its runtime folder goes with its session, the
// temporary one is always there.
func Folders() []string { return foldersOf(os.Geteuid(), os.Getenv("XDG_RUNTIME_DIR")) }

func foldersOf(uid int, runtime string) (folders []string) {
	if runtime != "" {
		folders = append(folders, filepath.Join(runtime, "penstock"))
	}
	return append(folders, filepath.Join(os.TempDir(), "penstock-"+strconv.Itoa(uid)))
}

// searched are the folders in which jobs are looked for: those of this process's environment and those that another may have
// had; of root, everybody's.
func searched() []string {
	uid := os.Geteuid()
	folders := Folders()
	folders = append(folders, fmt.Sprintf("/run/user/%d/penstock", uid), fmt.Sprintf("/tmp/penstock-%d", uid))
	if uid == 0 {
		for _, pattern := range []string{"/run/user/*/penstock", "/tmp/penstock-*"} {
			found, err := filepath.Glob(pattern)
			if err == nil { // which only a wrong pattern is
				folders = append(folders, found...)
			}
		}
	}
	slices.Sort(folders)
	return slices.Compact(folders)
}

// ownerOf is whose a folder is, if it is that user's alone.
func ownerOf(folder string) (uid int, err error) {
	info, err := os.Lstat(folder)
	if err != nil {
		return 0, err
	}
	owner := int(info.Sys().(*syscall.Stat_t).Uid)
	if !info.IsDir() || info.Mode().Perm()&0o077 != 0 {
		return 0, fmt.Errorf("%s is not a folder of one user alone (%s)", folder, info.Mode())
	}
	return owner, nil
}

// makeFolder makes a folder for this user's sockets, unless it is there, and says whether it may be used.
func makeFolder(folder string) error {
	// What is above it must be the user's, or one in which none can put another's away, as the temporary folder.
	above, err := os.Stat(filepath.Dir(folder))
	if err != nil {
		return err
	}
	if owner := int(above.Sys().(*syscall.Stat_t).Uid); owner != os.Geteuid() && above.Mode()&os.ModeSticky == 0 {
		return fmt.Errorf("%s belongs to user %d", filepath.Dir(folder), owner)
	}
	if err := os.Mkdir(folder, 0o700); err != nil && !os.IsExist(err) {
		return err
	}
	owner, err := ownerOf(folder)
	if err == nil && owner != os.Geteuid() {
		err = fmt.Errorf("%s belongs to user %d", folder, owner)
	}
	return err
}
