<?php
// What Composer would write here: the classes of Debian's packages php-doctrine-orm and php-symfony-cache.
require_once '/usr/share/php/Doctrine/ORM/autoload.php';
require_once '/usr/share/php/Symfony/Component/Cache/autoload.php';
